// Reductions, cumulative reductions, and sums at positions that data or windows give.

#include <algorithm>

#include "core/placement.h"
#include "verify/meaning.h"

namespace lockstep::verify {
namespace {

using Ints = std::vector<int64_t>;

Exact Neutral(ReduceKind kind) {
  switch (kind) {
    case ReduceKind::kSum:
    case ReduceKind::kMean: return Exact();
    case ReduceKind::kProd: return Exact::Of(1);
    case ReduceKind::kMax: return Exact::Infinity(true);
    case ReduceKind::kMin: return Exact::Infinity(false);
  }
  return Exact();
}

// Calls f(i, position) for each element i, with its coordinates.
template <typename F>
void ForEachPosition(const Shape& shape, F f) {
  Ints position(static_cast<size_t>(shape.rank()), 0);
  for (int64_t i = 0; i < shape.num_elements(); ++i) {
    f(static_cast<size_t>(i), position);
    for (size_t d = position.size(); d-- > 0;) {
      if (++position[d] < shape.dims()[d]) break;
      position[d] = 0;
    }
  }
}

template <ReduceKind kKind>
absl::Status Reduce(Meaning& m) {
  const Ints& dims = m.attr<Ints>("dims");
  const Ints kept_strides = m.result().shape().Strides();
  Ints strides;
  for (int64_t dim = 0, kept = 0; dim < m.operand(0).shape().rank(); ++dim) {
    const bool is_reduced = std::find(dims.begin(), dims.end(), dim) != dims.end();
    strides.push_back(is_reduced ? 0 : kept_strides[static_cast<size_t>(kept++)]);
  }
  std::fill(m.y().begin(), m.y().end(), Neutral(kKind));
  ForEachPosition(m.operand(0).shape(), [&](size_t i, const Ints& position) {
    int64_t to = 0;
    for (size_t d = 0; d < position.size(); ++d) to += position[d] * strides[d];
    Exact& y = m.y()[static_cast<size_t>(to)];
    y = Combined(kKind, y, m.x()[i]);
  });
  return absl::OkStatus();
}

template <ReduceKind kKind>
absl::Status Cumulate(Meaning& m) {
  const Shape& shape = m.operand(0).shape();
  if (shape.num_elements() == 0) return absl::OkStatus();
  const int64_t dim = m.attr<int64_t>("dim"), extent = shape[dim], inner = shape.Strides()[static_cast<size_t>(dim)];
  const bool exclusive = m.attr<bool>("exclusive"), reverse = m.attr<bool>("reverse");
  for (int64_t line = 0; line < shape.num_elements() / extent; ++line) {
    const int64_t first = line / inner * extent * inner + line % inner;
    Exact total = Neutral(kKind);
    for (int64_t i = 0; i < extent; ++i) {
      const auto at = static_cast<size_t>(first + (reverse ? extent - 1 - i : i) * inner);
      const Exact before = total;
      total = Combined(kKind, total, m.x()[at]);
      m.y()[at] = exclusive ? before : total;
    }
  }
  return absl::OkStatus();
}

// For each element that the movement `op` reads from a tensor of the result's shape, adds the operand's element there:
// the transpose of the movement.
absl::Status AddWhereItReads(Meaning& m, std::string_view op, const AttributeMap& attributes,
                             std::vector<const Tensor*> others, size_t addends) {
  ASSIGN_OR_RETURN(const std::vector<size_t> positions,
                   PositionsReadBy(op, attributes, m.result().shape(), others, m.operand(addends).shape()));
  for (size_t i = 0; i < positions.size(); ++i) m.y()[positions[i]] += m.x(addends)[i];
  return absl::OkStatus();
}

absl::Status ScatterSum(Meaning& m) {
  AttributeMap attributes = m.attributes();
  attributes.erase("size");
  return AddWhereItReads(m, "gather", attributes, {&m.operand(0).integers()}, 1);
}

absl::Status OverlapAdd(Meaning& m) {
  AttributeMap attributes = m.attributes();
  const auto dim = static_cast<std::ptrdiff_t>(m.attr<int64_t>("dim")),
             count = static_cast<std::ptrdiff_t>(m.attr<Ints>("size").size());
  attributes.erase("size");
  const Ints& dims = m.operand(0).shape().dims();
  attributes["window"] = Ints(dims.begin() + dim, dims.begin() + dim + count);
  return AddWhereItReads(m, "windows", attributes, {}, 0);
}

// Replacement is a movement; the other kinds combine.
absl::Status Scatter(Meaning& m) {
  const std::string& kind = m.attr<std::string>("kind");
  AttributeMap attributes = m.attributes();
  attributes.erase("kind");
  ASSIGN_OR_RETURN(
      const std::vector<size_t> positions,
      PositionsReadBy("gather", attributes, m.result().shape(), {&m.operand(1).integers()}, m.operand(2).shape()));
  m.y() = m.x(0);
  for (size_t i = 0; i < m.operand(2).size(); ++i) {
    Exact& y = m.y()[positions[i]];
    const Exact& update = m.x(2)[i];
    y = kind == "replace" ? update : Combined(*ReduceKindFromName(kind), y, update);
  }
  return absl::OkStatus();
}

}  // namespace

Exact Combined(ReduceKind kind, const Exact& x, const Exact& y) {
  switch (kind) {
    case ReduceKind::kSum:
    case ReduceKind::kMean: return x + y;
    case ReduceKind::kProd: return x * y;
    case ReduceKind::kMax: return x.is_nan() || (!y.is_nan() && y < x) ? x : y;
    case ReduceKind::kMin: return x.is_nan() || (!y.is_nan() && x < y) ? x : y;
  }
  return x;
}

absl::StatusOr<std::vector<size_t>> PositionsReadBy(std::string_view op, const AttributeMap& attributes,
                                                    const Shape& from, std::vector<const Tensor*> others,
                                                    const Shape& result) {
  Tensor positions({DType::kF64, from}), read({DType::kF64, result});
  double next = 0;
  for (double& position : positions.mutable_data<double>()) position = next++;
  others.insert(others.begin(), &positions);
  EvalContext context(GetOp(op), attributes, others, std::span<Tensor>(&read, 1));
  RETURN_IF_ERROR(GetOp(op).eval()(context));
  return std::vector<size_t>(read.data<double>().begin(), read.data<double>().end());
}

std::map<std::string_view, MeaningFn> ReductionMeanings() {
  return {
      {"reduce_sum", Reduce<ReduceKind::kSum>},
      {"reduce_max", Reduce<ReduceKind::kMax>},
      {"reduce_min", Reduce<ReduceKind::kMin>},
      {"reduce_prod", Reduce<ReduceKind::kProd>},
      {"cumulative_sum", Cumulate<ReduceKind::kSum>},
      {"cumulative_prod", Cumulate<ReduceKind::kProd>},
      {"scatter_sum", ScatterSum},
      {"overlap_add", OverlapAdd},
      {"scatter", Scatter},
  };
}

}  // namespace lockstep::verify
