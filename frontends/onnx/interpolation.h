// Values between the elements of images: gathers with weights. Internal to the frontend; pure.

#pragma once

#include <vector>

#include "core/builder.h"

namespace lockstep {

// The whole number at or below x, of floats, in i64: an index, and what a fraction is counted from.
Value IndexBelow(Builder& b, Value x);

// `position` limited to `margin` elements around an extent: what is further away finds zeros too, but has finite
// weights.
Value NearImage(Builder& b, Value position, int64_t extent, double margin);

// Of images x [N, C, S], whose last dimension is all spatial dimensions of `extents` in one, the elements at `indices`,
// a list of i64 [N, P] for each spatial dimension, as `wide`, a float type: [N, C, P]. An index out of range means 0 if
// `zeros`, else the nearest element.
Value ElementsAt(Builder& b, Value x, const std::vector<int64_t>& extents, const std::vector<Value>& indices,
                 bool zeros, DType wide);

// The product of weights [N, P], one of each spatial dimension, for images of C channels: [N, C, P].
Value WeightsFor(Builder& b, const std::vector<Value>& weights, int64_t channels);

// Linear interpolation of images x [N, C, S] at `positions` [N, P], floats that count elements, one for each spatial
// dimension: [N, C, P] in their dtype. Outside of x there are zeros, or its nearest elements.
Value InterpolatedAt(Builder& b, Value x, const std::vector<int64_t>& extents, const std::vector<Value>& positions,
                     bool zeros);

}  // namespace lockstep
