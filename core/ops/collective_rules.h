// What the collectives share: checks, slices of tensors, placement. For the authors of op blocks only.

#pragma once

#include "core/op_def.h"

namespace lockstep::ops {

inline constexpr char kAxisConstraint[] = "axis is an axis of the mesh";

// The size of the axis that the attribute `axis` names, or error C1.
absl::StatusOr<int64_t> CheckAxis(const InferContext& c);
// Error C2 unless the attribute `dim` is a dimension of the first operand.
absl::Status CheckDim(const InferContext& c);
// The type of one of n equal slices along `dim`; errors C1, C2, and C3 if the extent is not divisible. In global types
// the slices of all ranks have the type of the whole.
absl::StatusOr<TensorType> InferSlice(const InferContext& c);

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

// Along another axis, an op that moves data in dimension `dim`: all placements pass but a split of that dimension,
// whose slices would no longer be the global ones.
void PlaceMovementAlongOtherAxis(PlacementContext& c);

}  // namespace lockstep::ops
