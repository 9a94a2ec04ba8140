// Limits values by bounds. At the bound itself the derivative is not defined; these functions use PyTorch's choice,
// which differs between its clamp and its hardtanh. Internal to the frontend.

#pragma once

#include "frontends/onnx/onnx_node.h"

namespace lockstep {

// The larger, or the smaller, of x and a bound of the same type that is not NaN; NaN where x is NaN. Where both are
// equal the gradient goes to x, as in PyTorch's clamp.
Value AtLeast(Builder& b, Value x, Value low);
Value AtMost(Builder& b, Value x, Value high);

// The same, but where both are equal the gradient goes to the bound, as in PyTorch's hardtanh and relu6.
Value Above(Builder& b, Value x, Value low);
Value Below(Builder& b, Value x, Value high);

// x limited to [0, 1] as in PyTorch's hardsigmoid, with gradient 0 at the bounds 0 and 1.
Value HardLimit(Builder& b, Value x);

// x where it is positive, `scaled` elsewhere. The gradient at 0 goes to `scaled`, as in PyTorch's leaky_relu.
Value IfPositive(Builder& b, Value x, Value scaled);

}  // namespace lockstep
