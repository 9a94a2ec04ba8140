// Resamples a dimension with fixed weights: each new element is a weighted sum of old ones. Internal to the frontend;
// pure.

#pragma once

#include <cstdint>
#include <utility>
#include <vector>

#include "core/builder.h"

namespace lockstep {

// One new element: pairs of an old element's index and its weight. An index below 0 means the first element, an index
// past the end the last one.
using Taps = std::vector<std::pair<int64_t, double>>;

// x with the elements at `indices` along dimension `dim`. All indices must be in range. Becomes a slice or a repetition
// if the indices allow it.
Value Selected(Builder& b, Value x, int64_t dim, const std::vector<int64_t>& indices);

// x (floats) with dimension `dim` replaced by weighted sums along it, one for each of `rows`. If `dim` is the last
// dimension and not long, the sums are a product with a matrix: an element that is not finite then spreads to all sums
// of its line.
Value Resampled(Builder& b, Value x, int64_t dim, const std::vector<Taps>& rows);

}  // namespace lockstep
