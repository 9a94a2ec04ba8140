// What the collectives share: checks, slices of tensors, placement. For the authors of op blocks only.

#pragma once

#include <string_view>

#include "core/op_def.h"

namespace lockstep::ops {

inline constexpr char kAxisConstraint[] = "axis is an axis of the mesh";
inline constexpr char kRootConstraint[] = "root is at least 0 and below the size of axis";
inline constexpr char kBucketDoc[] = "the bucket in which the operands lie side by side; -1: not yet decided";

// The size of the axis that the attribute `axis` names, or error C1.
absl::StatusOr<int64_t> CheckAxis(const InferContext& c);
// Error C2 unless the attribute `name` is a dimension of operand i.
absl::Status CheckDim(const InferContext& c, size_t i = 0, std::string_view name = "dim");
// Error `id` unless the attribute `root` is a coordinate along the axis, which has `size` ranks.
absl::Status CheckRoot(const InferContext& c, int64_t size, std::string_view id);
// The type of one of `size` equal slices of `whole` along `dim`; error C3 if the extent is not divisible. In global
// types the slices of all ranks have the type of the whole.
absl::StatusOr<TensorType> SliceType(const InferContext& c, const TensorType& whole, int64_t dim, int64_t size);
// The type of `size` slices like `slice` one after the other along `dim`; error `id` if it is too large. In global
// types that of the slice.
absl::StatusOr<TensorType> WholeType(const InferContext& c, const TensorType& slice, int64_t dim, int64_t size,
                                     std::string_view id);
// Of operand i along the attributes `axis` and `dim`: errors C1 and C2 besides.
absl::StatusOr<TensorType> InferSlice(const InferContext& c, size_t i = 0);

// Copies `slice`, the `rank`-th of equal slices along `dim` of `whole`, into it or out of it.
class SliceCopy {
 public:
  SliceCopy(const Tensor& slice, const Tensor& whole, int64_t dim);
  void Into(const Tensor& slice, Tensor& whole, size_t rank) const;
  void OutOf(const Tensor& whole, Tensor& slice, size_t rank) const;

 private:
  size_t runs_ = 1, slice_bytes_, whole_bytes_;  // contiguous runs, and the bytes of each
};

// Whether the axis that is being placed is the one along which the collective works.
bool IsOwnAxis(const PlacementContext& c);

// Along another axis, an op that moves data of operand i in dimension `dim`: all placements pass to result i but a
// split of that dimension, whose slices would no longer be the global ones.
void PlaceMovementAlongOtherAxis(PlacementContext& c, size_t i, int64_t dim);

}  // namespace lockstep::ops
