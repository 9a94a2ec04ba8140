#include "core/ops/collective_rules.h"

#include <cstring>

namespace lockstep::ops {

absl::StatusOr<int64_t> CheckAxis(const InferContext& c) {
  const absl::StatusOr<int64_t> size = c.axis_size();
  if (!size.ok()) return c.Error("C1") << size.status().message();
  return *size;
}

absl::Status CheckDim(const InferContext& c) {
  const int64_t dim = c.attr<int64_t>("dim");
  if (!c.shape(0).has_dim(dim)) return c.Error("C2") << "dim " << dim << " is outside " << c.operand(0);
  return absl::OkStatus();
}

absl::StatusOr<TensorType> InferSlice(const InferContext& c) {
  ASSIGN_OR_RETURN(const int64_t size, CheckAxis(c));
  RETURN_IF_ERROR(CheckDim(c));
  const int64_t dim = c.attr<int64_t>("dim"), extent = c.shape(0)[dim];
  if (extent % size != 0) {
    return c.Error("C3") << "dimension " << dim << " of " << c.operand(0) << " does not divide among " << size
                         << " ranks";
  }
  return c.is_local() ? TensorType{c.dtype(0), c.shape(0).WithDim(dim, extent / size)} : c.operand(0);
}

SliceCopy::SliceCopy(const Tensor& slice, const Tensor& whole, int64_t dim) {
  for (int64_t i = 0; i < dim; ++i) runs_ *= static_cast<size_t>(whole.shape()[i]);
  slice_bytes_ = runs_ == 0 ? 0 : slice.num_bytes() / runs_;
  whole_bytes_ = runs_ == 0 ? 0 : whole.num_bytes() / runs_;
}

void SliceCopy::Into(const Tensor& slice, Tensor& whole, size_t rank) const {
  std::byte* to = whole.mutable_bytes() + rank * slice_bytes_;
  for (size_t i = 0; i < runs_; ++i) std::memcpy(to + i * whole_bytes_, slice.bytes() + i * slice_bytes_, slice_bytes_);
}

void SliceCopy::OutOf(const Tensor& whole, Tensor& slice, size_t rank) const {
  std::byte* to = slice.mutable_bytes();
  const std::byte* from = whole.bytes() + rank * slice_bytes_;
  for (size_t i = 0; i < runs_; ++i) std::memcpy(to + i * slice_bytes_, from + i * whole_bytes_, slice_bytes_);
}

bool IsOwnAxis(const PlacementContext& c) { return c.attr<std::string>("axis") == c.mesh_axis().name; }

void PlaceMovementAlongOtherAxis(PlacementContext& c) {
  const Placement& x = c.operand(0);
  const bool passes = !x.is_split(c.attr<int64_t>("dim"));
  if (!passes) c.Require(0, Placement::Replicated());
  c.Result(passes ? x : Placement::Replicated());
}

}  // namespace lockstep::ops
