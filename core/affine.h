// Affine functions of indices. Ops that move elements describe the origin of each element by them (core/op_def.h).
// Loops describe the elements that they read and write by them (backends/loops/). Plain values; any thread.

#pragma once

#include <cstddef>
#include <cstdint>
#include <vector>

namespace lockstep {

// constant + sum over k of strides[k] * index k.
struct Affine {
  int64_t constant = 0;
  std::vector<int64_t> strides;

  bool operator==(const Affine&) const = default;
  bool operator<(const Affine& other) const {
    return constant != other.constant ? constant < other.constant : strides < other.strides;
  }
  // this + factor * other
  Affine Plus(const Affine& other, int64_t factor) const;
  // The value of the function. Requires as many indices as strides.
  int64_t At(const std::vector<int64_t>& index) const;

  static Affine Zero(size_t num_dims) { return {0, std::vector<int64_t>(num_dims, 0)}; }
  // constant + stride * index `dim` of `num_dims`.
  static Affine Index(size_t num_dims, size_t dim, int64_t stride = 1, int64_t constant = 0);
};

// The origin of each element of a result: for each dimension of the operand, the index along it as a function of the
// indices of the result.
using IndexMap = std::vector<Affine>;

}  // namespace lockstep
