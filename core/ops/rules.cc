#include "core/ops/rules.h"

#include <algorithm>

namespace lockstep::ops {

absl::Status CheckSameTypes(const InferContext& c, std::string_view id) {
  for (size_t i = 1; i < c.num_operands(); ++i) {
    if (c.operand(i) != c.operand(0)) {
      return c.Error(id) << "operand types differ: " << c.operand(0) << " and " << c.operand(i);
    }
  }
  return absl::OkStatus();
}

absl::Status CheckArithmetic(const InferContext& c, std::string_view id) {
  if (c.dtype(0) == DType::kBool) return c.Error(id) << "operand " << c.operand(0) << ", expected floats or integers";
  return absl::OkStatus();
}

absl::Status CheckExtents(const InferContext& c, std::string_view id, const std::vector<int64_t>& extents) {
  constexpr int64_t kMostElements = int64_t{1} << 56;  // their bytes fit in 64 bits for every dtype
  int64_t count = 1;
  for (int64_t extent : extents) {
    if (extent < 0) return c.Error(id) << "negative extent in " << Shape(extents);
    if (extent > 1 && count > kMostElements / extent) return c.Error(id) << Shape(extents) << " is too large";
    count *= extent;
  }
  return absl::OkStatus();
}

absl::Status CheckIncreasingDims(const InferContext& c, std::string_view id, const std::vector<int64_t>& dims,
                                 const Shape& shape) {
  for (size_t i = 0; i < dims.size(); ++i) {
    if (!shape.has_dim(dims[i])) return c.Error(id) << "dim " << dims[i] << " is outside " << shape;
    if (i > 0 && dims[i] <= dims[i - 1]) return c.Error(id) << "dims " << ListToString(dims) << " do not increase";
  }
  return absl::OkStatus();
}

DType DTypeOfSum(DType operands, bool wide_result) {
  return wide_result && IsFloat(operands) && SizeOf(operands) == 2 ? DType::kF32 : operands;
}

void ForEachIndex(const Shape& shape, const std::function<void(const std::vector<int64_t>&)>& f) {
  if (shape.num_elements() == 0) return;
  std::vector<int64_t> index(static_cast<size_t>(shape.rank()), 0);
  while (true) {
    f(index);
    int64_t dim = shape.rank() - 1;
    while (dim >= 0 && ++index[static_cast<size_t>(dim)] == shape[dim]) index[static_cast<size_t>(dim--)] = 0;
    if (dim < 0) return;
  }
}

bool IsLinearPartial(const Placement& placement, DType dtype) {
  return placement.is_partial(ReduceKind::kSum) || (placement.is_partial(ReduceKind::kMean) && IsFloat(dtype));
}

bool PlaceLocal(PlacementContext& c) {
  bool any_local = false;
  for (size_t i = 0; i < c.num_operands(); ++i) any_local |= c.operand(i).is_local();
  if (!any_local) return false;
  for (size_t i = 0; i < c.num_operands(); ++i) {
    if (!c.operand(i).is_local()) c.Require(i, Placement::Replicated());
  }
  c.Result(Placement::Local());
  return true;
}

namespace {

// The partial placement of the result, if the operands allow one.
std::optional<Placement> PassPartial(const PlacementContext& c, Linearity linearity) {
  size_t partials = 0, whole = 0;
  Placement partial;
  for (size_t i = 0; i < c.num_operands(); ++i) {
    if (c.operand(i).is_replicated()) ++whole;
    if (!IsLinearPartial(c.operand(i), c.dtype(i))) continue;
    if (partials++ > 0 && c.operand(i) != partial) return std::nullopt;
    partial = c.operand(i);
  }
  const bool others_whole = partials == 1 && whole + 1 == c.num_operands();
  if (linearity == Linearity::kAll && partials == c.num_operands()) return partial;
  if (linearity == Linearity::kOne && others_whole) return partial;
  // The division of integers truncates and is not linear.
  const bool first = IsLinearPartial(c.operand(0), c.dtype(0)) && IsFloat(c.dtype(0));
  if (linearity == Linearity::kFirst && others_whole && first) return partial;
  return std::nullopt;
}

}  // namespace

void PlaceElementwise(PlacementContext& c, Linearity linearity) {
  if (PlaceLocal(c)) return;
  bool all_replicated = true;
  std::optional<Placement> split;
  for (size_t i = 0; i < c.num_operands(); ++i) {
    all_replicated &= c.operand(i).is_replicated();
    if (!split && c.operand(i).is_split()) split = c.operand(i);
  }
  if (all_replicated && c.wanted() && c.wanted()->is_split()) split = c.wanted();
  if (split) {
    c.RequireAll(*split);
    c.Result(*split);
  } else if (const std::optional<Placement> partial = PassPartial(c, linearity)) {
    c.Result(*partial);
  } else {
    c.RequireAll(Placement::Replicated());
    c.Result(Placement::Replicated());
  }
}

void PlaceDataMovement(PlacementContext& c, const std::function<int64_t(int64_t)>& to_result,
                       const std::function<int64_t(int64_t)>& to_operand) {
  const Placement& x = c.operand(0);
  if (x.is_replicated() && c.wanted() && c.wanted()->is_split()) {
    const int64_t dim = to_operand(c.wanted()->dim());
    if (dim < 0) return;  // the caller takes a slice of the whole result
    c.Require(0, Placement::Split(dim));
    c.Result(*c.wanted());
  } else if (x.is_split()) {
    const int64_t dim = to_result(x.dim());
    if (dim < 0) c.Require(0, Placement::Replicated());
    else c.Result(Placement::Split(dim));
  } else {
    c.Result(x);
  }
}

void PlaceIndependentRows(PlacementContext& c, const std::function<bool(int64_t dim)>& independent) {
  if (PlaceLocal(c)) return;
  std::optional<Placement> split;
  for (size_t i = 0; i < c.num_operands(); ++i) {
    if (!split && c.operand(i).is_split() && independent(c.operand(i).dim())) split = c.operand(i);
  }
  c.RequireAll(split.value_or(Placement::Replicated()));
  c.Result(split.value_or(Placement::Replicated()));
}

}  // namespace lockstep::ops
