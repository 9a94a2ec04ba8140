// Possible results of a convolution and its gradients for infinities and NaN. Each is a sum of products over the taps
// of the filter. Some taps lie over zeros that are not elements: zeros of the padding and, if the gradient of the input
// is computed as a convolution of dy, zeros beside dy and between its elements. A kernel leaves these taps out, or
// multiplies with the zeros, which gives NaN where the other factor is infinite or NaN; which one depends on the
// library's engine.

#pragma once

#include <vector>

#include "test/op_cases/op_case.h"

namespace lockstep {

// Returns true if the row's op is a convolution or a gradient of one.
bool HasTaps(const OpCase& row);

// The results, in the result's type: with all taps over zeros left out, and with all multiplied. They differ where the
// second is NaN because of such taps; each element of any kernel equals that of one of the two. Slow. Requires HasTaps
// and elements.
struct OverZeros {
  Tensor left_out, multiplied;
};
OverZeros ComputeOverZeros(const OpCase& row, const std::vector<Tensor>& operands);

}  // namespace lockstep
