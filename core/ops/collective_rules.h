// The common parts of collectives: checks, slices of tensors, placement. For the authors of op blocks only.

#pragma once

#include <string_view>

#include "core/op_def.h"

namespace lockstep::ops {

inline constexpr char kAxisConstraint[] = "axis is an axis of the mesh";
inline constexpr char kRootConstraint[] = "root is at least 0 and below the size of axis";
inline constexpr char kBucketDoc[] = "the bucket in which the operands are adjacent; -1: not yet decided";

// The size of the axis that the attribute `axis` names, or error C1.
absl::StatusOr<int64_t> CheckAxis(const InferContext& c);
// Error C2 unless the attribute `name` is a dimension of operand i.
absl::Status CheckDim(const InferContext& c, size_t i = 0, std::string_view name = "dim");
// Error `id` unless the attribute `root` is a coordinate along the axis, which has `size` ranks.
absl::Status CheckRoot(const InferContext& c, int64_t size, std::string_view id);
// The type of one of `size` equal slices of `whole` along `dim`; error C3 if the extent is not divisible. With global
// types it is the type of `whole`.
absl::StatusOr<TensorType> SliceType(const InferContext& c, const TensorType& whole, int64_t dim, int64_t size);
// The type of `size` slices like `slice`, concatenated along `dim`; error `id` if it is too large. With global types it
// is the type of `slice`.
absl::StatusOr<TensorType> WholeType(const InferContext& c, const TensorType& slice, int64_t dim, int64_t size,
                                     std::string_view id);
// SliceType of operand i for the attributes `axis` and `dim`. Also checks C1 and C2.
absl::StatusOr<TensorType> InferSlice(const InferContext& c, size_t i = 0);

// Copies `slice`, the `rank`-th of equal slices along `dim` of `whole`, into it or out of it.
class SliceCopy {
 public:
  SliceCopy(const Tensor& slice, const Tensor& whole, int64_t dim);
  void Into(const Tensor& slice, Tensor& whole, size_t rank) const;
  void OutOf(const Tensor& whole, Tensor& slice, size_t rank) const;

 private:
  size_t runs_ = 1, slice_bytes_, whole_bytes_;  // the number of contiguous runs, and their bytes in each tensor
};

// The reference meaning of an op whose result is the sum of its operand over all ranks: that of all_reduce, in the same
// order. The op has the attribute `axis`.
absl::Status EvalSumOverRanks(RanksEvalContext& c);

// True if the axis that is being placed is the one along which the collective works.
bool IsOwnAxis(const PlacementContext& c);

// Places, along another axis, a collective that moves data of operand i along dimension `dim`. Result i has the
// placement of the operand, except that a split of `dim` must be replicated first: its slices would not be those of the
// global value.
void PlaceMovementAlongOtherAxis(PlacementContext& c, size_t i, int64_t dim);

}  // namespace lockstep::ops
