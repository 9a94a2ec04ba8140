// Affine functions of indices: how ops that move elements say where each comes from (core/op_def.h), and where loops
// read and write (backends/loops/). Plain values; any thread.

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
  // Of as many indices as strides.
  int64_t At(const std::vector<int64_t>& index) const;

  static Affine Zero(size_t num_dims) { return {0, std::vector<int64_t>(num_dims, 0)}; }
  // constant + stride * index `dim` of `num_dims`.
  static Affine Index(size_t num_dims, size_t dim, int64_t stride = 1, int64_t constant = 0);
};

// Where the elements of a result come from: for each dimension of the operand the index there, as a function of the
// indices in the result.
using IndexMap = std::vector<Affine>;

}  // namespace lockstep
