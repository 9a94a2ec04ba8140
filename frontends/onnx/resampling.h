// A dimension resampled with fixed weights: each new element is a sum of some old ones. Internal to the frontend; pure.

#pragma once

#include <cstdint>
#include <utility>
#include <vector>

#include "core/builder.h"

namespace lockstep {

// One new element: pairs of an old element's index and its weight. Indices before the beginning mean the first element,
// those after the end the last one.
using Taps = std::vector<std::pair<int64_t, double>>;

// x with dimension `dim` replaced by elements of it, one for each index, all of which are in range. A slice or a
// repetition where that is what the indices say.
Value Selected(Builder& b, Value x, int64_t dim, const std::vector<int64_t>& indices);

// x, of floats, with dimension `dim` replaced by weighted sums along it, one for each of `rows`. The last dimension, if
// it is not long, is a product with a matrix: what is not finite there spreads to all sums of its line.
Value Resampled(Builder& b, Value x, int64_t dim, const std::vector<Taps>& rows);

}  // namespace lockstep
