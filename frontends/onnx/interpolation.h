// Interpolates images at positions between their elements, by gathers and weights. Internal to the frontend; pure.

#pragma once

#include <vector>

#include "core/builder.h"

namespace lockstep {

// The largest whole number that is not above x (floats), as an i64 index. The fraction x - index is the weight.
Value IndexBelow(Builder& b, Value x);

// `position` limited to [-1 - margin, extent + margin]. Positions outside read zeros in either case; the limit keeps
// their weights finite.
Value ClampToMargin(Builder& b, Value position, int64_t extent, double margin);

// Gathers elements of images x [N, C, S], whose last dimension is all spatial dimensions of `extents` in one. `indices`
// is a list of i64 [N, P], one for each spatial dimension. Returns [N, C, P] of the float type `wide`. For an index out
// of range the element is 0 if `zeros`, else the nearest element.
Value ElementsAt(Builder& b, Value x, const std::vector<int64_t>& extents, const std::vector<Value>& indices,
                 bool zeros, DType wide);

// The product of weights [N, P], one for each spatial dimension, broadcast over C channels: [N, C, P].
Value WeightsFor(Builder& b, const std::vector<Value>& weights, int64_t channels);

// Linear interpolation of images x [N, C, S] at `positions`, one [N, P] for each spatial dimension, floats in units of
// elements. Returns [N, C, P] in their dtype. Outside of x the value is 0 if `zeros`, else that of the nearest element.
Value InterpolatedAt(Builder& b, Value x, const std::vector<int64_t>& extents, const std::vector<Value>& positions,
                     bool zeros);

}  // namespace lockstep
