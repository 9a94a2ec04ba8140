// What a convolution and its gradients may make of infinities and NaN. Each is a sum of products over the taps of the
// filter; some taps lie over zeros that are no elements: of the padding, and, where the gradient of the input is seen
// as a convolution of dy, beside dy and between its elements. Kernels leave these taps out, or multiply with the zeros,
// which gives NaN where the other factor is infinite or NaN; which of the two depends on the library's engine.

#pragma once

#include <vector>

#include "test/op_cases/op_case.h"

namespace lockstep {

// Whether the row's op is a convolution or a gradient of one.
bool HasTaps(const OpCase& row);

// The results, of the result's type: with all taps over zeros left out, and with all multiplied. They differ where the
// second is NaN because of such taps; any kernel's element is that of one of the two. Slow and plain; requires HasTaps
// and elements.
struct OverZeros {
  Tensor left_out, multiplied;
};
OverZeros ComputeOverZeros(const OpCase& row, const std::vector<Tensor>& operands);

}  // namespace lockstep
