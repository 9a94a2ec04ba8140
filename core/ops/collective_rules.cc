#include "core/ops/collective_rules.h"

#include <cstring>
#include <string>
#include <utility>
#include <vector>

#include "core/ops/op_list.h"
#include "core/ops/rules.h"

namespace lockstep::ops {

absl::StatusOr<int64_t> CheckAxis(const InferContext& c) {
  const absl::StatusOr<int64_t> size = c.axis_size();
  if (!size.ok()) return c.Error("C1") << size.status().message();
  return *size;
}

absl::Status CheckDim(const InferContext& c, size_t i, std::string_view name) {
  const int64_t dim = c.attr<int64_t>(name);
  if (!c.shape(i).has_dim(dim)) return c.Error("C2") << name << " " << dim << " is outside " << c.operand(i);
  return absl::OkStatus();
}

absl::Status CheckRoot(const InferContext& c, int64_t size, std::string_view id) {
  const int64_t root = c.attr<int64_t>("root");
  if (root < 0 || root >= size) return c.Error(id) << "root " << root << " of " << size << " ranks";
  return absl::OkStatus();
}

absl::StatusOr<TensorType> SliceType(const InferContext& c, const TensorType& whole, int64_t dim, int64_t size) {
  const int64_t extent = whole.shape[dim];
  if (extent % size != 0) {
    return c.Error("C3") << "dimension " << dim << " of " << whole << " does not divide among " << size << " ranks";
  }
  return c.is_local() ? TensorType{whole.dtype, whole.shape.WithDim(dim, extent / size)} : whole;
}

absl::StatusOr<TensorType> WholeType(const InferContext& c, const TensorType& slice, int64_t dim, int64_t size,
                                     std::string_view id) {
  if (!c.is_local()) return slice;
  std::vector<int64_t> extents = slice.shape.dims();
  int64_t& extent = extents[static_cast<size_t>(dim)];
  if (__builtin_mul_overflow(extent, size, &extent)) return c.Error(id) << size << " times " << slice;
  RETURN_IF_ERROR(CheckExtents(c, id, extents));
  return TensorType{slice.dtype, Shape(extents)};
}

absl::StatusOr<TensorType> InferSlice(const InferContext& c, size_t i) {
  ASSIGN_OR_RETURN(const int64_t size, CheckAxis(c));
  RETURN_IF_ERROR(CheckDim(c, i));
  return SliceType(c, c.operand(i), c.attr<int64_t>("dim"), size);
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

absl::Status EvalSumOverRanks(RanksEvalContext& c) {
  std::vector<std::vector<const Tensor*>> operands(c.num_ranks());
  std::vector<std::vector<Tensor>> results(c.num_ranks());
  for (size_t rank = 0; rank < c.num_ranks(); ++rank) {
    operands[rank].push_back(&c.operand(rank, 0));
    results[rank].emplace_back(c.operand(rank, 0).type());
  }
  ASSIGN_OR_RETURN(const AttributeMap attributes,
                   AllReduceOp().CompleteAttributes({{"axis", c.attr<std::string>("axis")}, {"kind", "sum"}}));
  RanksEvalContext sum(AllReduceOp(), attributes, operands, results);
  RETURN_IF_ERROR(AllReduceOp().ranks_eval()(sum));
  for (size_t rank = 0; rank < c.num_ranks(); ++rank) c.result(rank) = std::move(results[rank][0]);
  return absl::OkStatus();
}

bool IsOwnAxis(const PlacementContext& c) { return c.attr<std::string>("axis") == c.mesh_axis().name; }

void PlaceMovementAlongOtherAxis(PlacementContext& c, size_t i, int64_t dim) {
  const Placement& x = c.operand(i);
  const bool passes = !x.is_split(dim);
  if (!passes) c.Require(i, Placement::Replicated());
  c.Result(i, passes ? x : Placement::Replicated());
}

}  // namespace lockstep::ops
