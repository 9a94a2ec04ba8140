// Positions in tensors as affine functions of a loop's indices, and how one is taken apart into an index for each
// dimension. Used by loop_plan.cc alone. Plain values; any thread.

#pragma once

#include <cstdint>
#include <variant>
#include <vector>

#include "core/affine.h"
#include "core/shape.h"

namespace lockstep {

// Row-major strides in elements, none of them 0 although an extent may be.
std::vector<int64_t> StridesOf(const Shape& shape);

// Loop dimension `dim` has to become two, the inner one with `inner` iterations, before a position can be taken apart.
struct SplitDim {
  size_t dim;
  int64_t inner;
};
struct NotAffine {};

// Takes apart a row-major position in a tensor of `shape` into one index for each of its dimensions. `extents` are
// the loop's; the position has stride 0 along those of extent 1, and is inside the tensor.
std::variant<std::vector<Affine>, SplitDim, NotAffine> IndicesOf(const Affine& position, const Shape& shape,
                                                                 const std::vector<int64_t>& extents);

}  // namespace lockstep
