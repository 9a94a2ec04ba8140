// The common part of the blocks of gather, scatter_sum and scatter. For them only.

#pragma once

#include <string_view>
#include <vector>

#include "core/op_def.h"

namespace lockstep::ops {

// The indices, with negative ones replaced by their positions from the end. Error `id` if one is outside `extent`.
absl::StatusOr<std::vector<int64_t>> PositionsOf(const EvalContext& c, std::string_view id, const Tensor& indices,
                                                 int64_t extent);

// Error C1 unless operand i, the indices, are of i64 or i32.
absl::Status CheckIndexTypes(const InferContext& c, size_t i);
// Errors C2 to C4 unless `dim` is a dimension of x and the first `batch_dims` dimensions of both are equal.
absl::Status CheckIndexedDims(const InferContext& c, const Shape& x, const Shape& indices);
// x with dimension `dim` replaced by the indices' dimensions from `batch_dims` on. Requires CheckIndexedDims.
Shape ShapeOfValues(const InferContext& c, const Shape& x, const Shape& indices);

// Split along `dim`, or replicated if that is -1.
Placement SplitOrWhole(int64_t dim);

}  // namespace lockstep::ops
