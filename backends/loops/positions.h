// Positions in tensors as affine functions of a loop's indices, and their decomposition into an index for each
// dimension. Used only by loop_nest.cc. Plain data; any thread.

#pragma once

#include <cstdint>
#include <variant>
#include <vector>

#include "core/affine.h"
#include "core/shape.h"

namespace lockstep {

// Returns the row-major strides in elements. None is 0, although an extent may be.
std::vector<int64_t> StridesOf(const Shape& shape);

// Says that loop dimension `dim` must be split in two, the inner one with `inner` iterations, before a position can be
// decomposed.
struct SplitDim {
  size_t dim;
  int64_t inner;
};
struct NotAffine {};

// Decomposes a row-major position in a tensor of `shape` into one index for each of its dimensions. `extents` are the
// loop's. The position must have stride 0 along loop dimensions of extent 1, and be inside the tensor.
std::variant<std::vector<Affine>, SplitDim, NotAffine> IndicesOf(const Affine& position, const Shape& shape,
                                                                 const std::vector<int64_t>& extents);

}  // namespace lockstep
