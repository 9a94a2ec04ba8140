// Products of elements, and ops whose results are some of their operands' elements.

#include <algorithm>

#include "verify/tangent_rule.h"

namespace lockstep::verify {
namespace {

using Ints = std::vector<int64_t>;

// --- Products -------------------------------------------------------------------------------------------------------

// A number and its tangent.
struct Dual {
  Exact value = Exact::Of(1), tangent;
  Dual operator*(const Dual& other) const {
    return {value * other.value, tangent * other.value + value * other.tangent};
  }
};

// For each element of the operand, the position of the result's element that it is reduced to.
absl::StatusOr<std::vector<size_t>> ReducedTo(const Forward& f) {
  const Ints& dims = f.attr<Ints>("dims");
  Ints kept;
  for (int64_t dim = 0; dim < f.x[0]->shape().rank(); ++dim) {
    if (std::find(dims.begin(), dims.end(), dim) == dims.end()) kept.push_back(dim);
  }
  return PositionsReadBy("broadcast", {{"dims", kept}, {"shape", f.x[0]->shape().dims()}}, f.y[0]->shape(), {},
                         f.x[0]->shape());
}

absl::Status Product(Forward& f) {
  ASSIGN_OR_RETURN(const std::vector<size_t> to, ReducedTo(f));
  std::vector<Dual> products(f.y[0]->size());
  for (size_t i = 0; i < to.size(); ++i)
    products[to[i]] = products[to[i]] * Dual{f.x[0]->numbers()[i], f.tangents(0)[i]};
  for (size_t i = 0; i < products.size(); ++i) f.out()[i] = products[i].tangent;
  return absl::OkStatus();
}

absl::Status CumulativeProduct(Forward& f) {
  const Shape& shape = f.x[0]->shape();
  std::vector<Exact>& dy = f.out();
  if (dy.empty()) return absl::OkStatus();
  const int64_t dim = f.attr<int64_t>("dim"), extent = shape[dim], inner = shape.Strides()[static_cast<size_t>(dim)];
  for (int64_t line = 0; line < shape.num_elements() / extent; ++line) {
    const int64_t first = line / inner * extent * inner + line % inner;
    Dual product;
    for (int64_t i = 0; i < extent; ++i) {
      const auto at = static_cast<size_t>(first + (f.attr<bool>("reverse") ? extent - 1 - i : i) * inner);
      const Exact before = product.tangent;
      product = product * Dual{f.x[0]->numbers()[at], f.tangents(0)[at]};
      dy[at] = f.attr<bool>("exclusive") ? before : product.tangent;
    }
  }
  return absl::OkStatus();
}

// --- Choices --------------------------------------------------------------------------------------------------------

// The mean of tangents, of those elements that a result is equal to.
struct Mean {
  Exact sum;
  int64_t count = 0;
  void Add(const Exact& tangent) { sum += tangent, ++count; }
  Exact mean() const { return count == 0 ? Exact() : sum / Exact::Of(count); }
};

absl::Status Extremum(Forward& f) {
  ASSIGN_OR_RETURN(const std::vector<size_t> to, ReducedTo(f));
  std::vector<Mean> means(f.y[0]->size());
  for (size_t i = 0; i < to.size(); ++i) {
    if (f.x[0]->numbers()[i] == f.y[0]->numbers()[to[i]]) means[to[i]].Add(f.tangents(0)[i]);
  }
  for (size_t i = 0; i < means.size(); ++i) f.out()[i] = means[i].mean();
  return absl::OkStatus();
}

absl::StatusOr<std::vector<size_t>> UpdatedBy(const Forward& f) {
  AttributeMap attributes = f.node.attributes();
  attributes.erase("kind");
  return PositionsReadBy("gather", attributes, f.x[0]->shape(), {&f.x[1]->integers()}, f.x[2]->shape());
}

absl::Status ScatterProduct(Forward& f, const std::vector<size_t>& to) {
  std::vector<Dual> products;
  for (size_t i = 0; i < f.y[0]->size(); ++i) products.push_back({f.x[0]->numbers()[i], f.TangentAt(0, i)});
  for (size_t i = 0; i < to.size(); ++i)
    products[to[i]] = products[to[i]] * Dual{f.x[2]->numbers()[i], f.TangentAt(2, i)};
  for (size_t i = 0; i < products.size(); ++i) f.out()[i] = products[i].tangent;
  return absl::OkStatus();
}

absl::Status ScatterExtremum(Forward& f, const std::vector<size_t>& to) {
  std::vector<Mean> means(f.y[0]->size());
  const std::vector<Exact>& y = f.y[0]->numbers();
  for (size_t i = 0; i < y.size(); ++i) {
    if (f.x[0]->numbers()[i] == y[i]) means[i].Add(f.TangentAt(0, i));
  }
  for (size_t i = 0; i < to.size(); ++i) {
    if (f.x[2]->numbers()[i] == y[to[i]]) means[to[i]].Add(f.TangentAt(2, i));
  }
  for (size_t i = 0; i < means.size(); ++i) f.out()[i] = means[i].mean();
  return absl::OkStatus();
}

absl::Status Scatter(Forward& f) {
  const std::string& kind = f.attr<std::string>("kind");
  if (kind == "replace") return Linear(f);
  ASSIGN_OR_RETURN(const std::vector<size_t> to, UpdatedBy(f));
  return kind == "prod" ? ScatterProduct(f, to) : ScatterExtremum(f, to);
}

absl::Status FirstMaximum(Forward& f) {
  const NodeContext context(f.node.op(), f.node.attributes());
  const auto maxima = PositionsOfMaxima(context, *f.x[0], f.y[0]->shape());
  for (size_t i = 0; i < maxima.size(); ++i) {
    if (maxima[i]) f.out()[i] = f.tangents(0)[*maxima[i]];
  }
  return absl::OkStatus();
}

// The elements at the positions that the second result says.
absl::Status TopK(Forward& f) {
  const Shape &from = f.x[0]->shape(), &to = f.y[0]->shape();
  const int64_t dim = f.attr<int64_t>("dim"), inner = from.Strides()[static_cast<size_t>(dim)];
  std::vector<Exact>& dy = f.out();
  for (size_t i = 0; i < dy.size(); ++i) {
    const auto at = static_cast<int64_t>(i);
    const auto position = static_cast<int64_t>(f.y[1]->integers().At(at));
    dy[i] = f.tangents(0)[static_cast<size_t>((at / (inner * to[dim]) * from[dim] + position) * inner + at % inner)];
  }
  return absl::OkStatus();
}

}  // namespace

std::map<std::string_view, Rule> ReductionRules() {
  return {
      {"reduce_prod", Product}, {"cumulative_prod", CumulativeProduct},
      {"reduce_max", Extremum}, {"reduce_min", Extremum},
      {"scatter", Scatter},     {"max_pool", FirstMaximum},
      {"top_k", TopK},
  };
}

}  // namespace lockstep::verify
