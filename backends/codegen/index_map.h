// Where a loop reads and writes: positions in tensors as affine functions of the loop's indices. Used by loop_plan.cc alone.
// Plain values; any thread.

#pragma once

#include <cstdint>
#include <variant>
#include <vector>

#include "core/shape.h"

namespace lockstep {

// constant + sum over k of strides[k] * index k of the loop. A loop dimension of extent 1 has stride 0.
struct Affine {
  int64_t constant = 0;
  std::vector<int64_t> strides;

  bool operator==(const Affine&) const = default;
  bool operator<(const Affine& other) const {
    return constant != other.constant ? constant < other.constant : strides < other.strides;
  }
  // this + factor * other
  Affine Plus(const Affine& other, int64_t factor) const;
  static Affine Zero(size_t num_dims) { return {0, std::vector<int64_t>(num_dims, 0)}; }
};

// Row-major strides in elements, none of them 0 although an extent may be.
std::vector<int64_t> StridesOf(const Shape& shape);

// Loop dimension `dim` has to become two, the inner one with `inner` iterations, before a position can be taken apart.
struct SplitDim {
  size_t dim;
  int64_t inner;
};
struct NotAffine {};

// Takes apart a row-major position in a tensor of `shape` into one index for each of its dimensions. `extents` are the loop's.
std::variant<std::vector<Affine>, SplitDim, NotAffine> IndicesOf(const Affine& position, const Shape& shape,
                                                                 const std::vector<int64_t>& extents);

}  // namespace lockstep
