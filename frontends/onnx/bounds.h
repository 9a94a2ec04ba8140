// Values limited by bounds. At a bound itself a limited value has no derivative; these functions have the one that
// PyTorch chooses, which is another for its clamp than for its hardtanh. Internal to the frontend.

#pragma once

#include "frontends/onnx/onnx_node.h"

namespace lockstep {

// The larger, or the smaller, of x and a bound of its type that is not NaN; NaN where x is. Where they are equal the
// gradient goes to x, as through PyTorch's clamp.
Value AtLeast(Builder& b, Value x, Value low);
Value AtMost(Builder& b, Value x, Value high);

// The same, but where they are equal the gradient goes to the bound, as through PyTorch's hardtanh and relu6.
Value Above(Builder& b, Value x, Value low);
Value Below(Builder& b, Value x, Value high);

// x limited to [0, 1] as in PyTorch's hardsigmoid, without a gradient at 0 and 1.
Value HardLimit(Builder& b, Value x);

// x where it is positive, `scaled` elsewhere. The gradient at 0 goes to `scaled`, as through PyTorch's leaky_relu.
Value IfPositive(Builder& b, Value x, Value scaled);

}  // namespace lockstep
