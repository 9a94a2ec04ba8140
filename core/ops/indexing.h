// The memory layout of ops that read or write at positions given by data, and the checks of their indices. For the
// authors of op blocks and of kernels.

#pragma once

#include <cstdint>
#include <string>
#include <string_view>

#include "core/shape.h"
#include "core/status.h"

namespace lockstep::ops {

// x is [batch, outer, extent, inner]. The values read from it or written to it are [batch, outer, count, inner]. The
// indices are [batch, count]: for each of the `count` rows of values, its row among the `extent` rows of x.
struct IndexedRows {
  int64_t batch = 1, outer = 1, extent = 0, count = 1, inner = 1;

  // For an op that indexes dimension `dim` of x. x and the indices have their first `batch_dims` dimensions in common.
  IndexedRows(const Shape& x, const Shape& indices, int64_t dim, int64_t batch_dims) : extent(x[dim]) {
    for (int64_t i = 0; i < x.rank(); ++i) (i < batch_dims ? batch : i < dim ? outer : inner) *= i == dim ? 1 : x[i];
    for (int64_t i = batch_dims; i < indices.rank(); ++i) count *= indices[i];
  }

  // The number of groups. A group is a slice [extent, inner] of x, which `count` indices address.
  int64_t groups() const { return batch * outer; }
  // The offset of the indices of a group.
  int64_t IndicesOf(int64_t group) const { return group / outer * count; }
};

// Converts between dimensions of x, of the indices, and of the values (the result of a gather, the updates of a
// scatter); -1 if there is no corresponding dimension. The values have the shape of x with dimension `dim` replaced by
// the indices' dimensions from `batch_dims` on.
struct IndexedDims {
  int64_t dim, batch_dims, index_dims;  // index_dims: the number of dimensions that replace `dim`

  IndexedDims(int64_t dim, int64_t batch_dims, int64_t rank_of_indices)
      : dim(dim), batch_dims(batch_dims), index_dims(rank_of_indices - batch_dims) {}

  int64_t XToValues(int64_t d) const { return d < dim ? d : d == dim ? -1 : d - 1 + index_dims; }
  int64_t ValuesToX(int64_t d) const { return d < dim ? d : d < dim + index_dims ? -1 : d + 1 - index_dims; }
  int64_t IndicesToValues(int64_t d) const { return d < batch_dims ? d : dim + d - batch_dims; }
  int64_t ValuesToIndices(int64_t d) const {
    if (d < batch_dims) return d;
    return d >= dim && d < dim + index_dims ? d - dim + batch_dims : -1;
  }
};

// "gather (C6): index 7 at position [1, 0] is outside [-5, 5), the extent of dimension 0". The message begins with
// `constraint`; `at` is the row-major position in `indices`.
absl::Status IndexError(std::string_view constraint, int64_t index, int64_t at, const Shape& indices, int64_t dim,
                        int64_t extent);

// "softmax_cross_entropy (C5): label 7 at position [2] is outside [0, 5)". `at` is the row-major position in `labels`.
// For a negative label, which often marks samples to ignore, the message names the loss's option ignore_index.
absl::Status LabelError(std::string_view constraint, int64_t label, int64_t at, const Shape& labels, int64_t classes);

// Error `constraint` unless each of the indices is in [-extent, extent).
template <typename Index>
absl::Status CheckIndices(std::string_view constraint, const Index* indices, const Shape& shape, int64_t dim,
                          int64_t extent) {
  for (int64_t i = 0; i < shape.num_elements(); ++i) {
    const auto index = static_cast<int64_t>(indices[i]);
    if (index < -extent || index >= extent) return IndexError(constraint, index, i, shape, dim, extent);
  }
  return absl::OkStatus();
}

}  // namespace lockstep::ops
