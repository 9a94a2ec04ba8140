// Rules about reductions and matrix products.

#include <algorithm>

#include "core/op_def.h"
#include "passes/simplify/rule.h"

namespace lockstep::passes {
namespace {

using Ints = std::vector<int64_t>;

bool Contains(const Ints& list, int64_t value) { return std::find(list.begin(), list.end(), value) != list.end(); }

// reduce over no dimension ==> x
Value ReduceNothing(Node& node, Builder&) { return node.attr<Ints>("dims").empty() ? node.operand(0) : Value(); }

// reduce over dimensions of extent 1 ==> reshape(x)
Value ReduceUnitDims(Node& node, Builder& b) {
  for (int64_t dim : node.attr<Ints>("dims")) {
    if (node.operand(0).shape()[dim] != 1) return Value();
  }
  return b.Reshape(node.operand(0), node.type(0).shape);
}

// reduce(reduce(x)) ==> reduce(x)
Value ReduceReduce(Node& node, Builder& b) {
  Node* inner = MadeBy(node.operand(0), node.op_name());
  if (!inner || !HasOneUse(b.graph(), inner->result())) return Value();
  const Ints &inner_dims = inner->attr<Ints>("dims"), &outer_dims = node.attr<Ints>("dims");
  Ints dims;
  int64_t outer_dim = 0;  // the place of `dim` among the dimensions that the inner reduction leaves
  for (int64_t dim = 0; dim < inner->operand(0).shape().rank(); ++dim) {
    const bool is_inner = Contains(inner_dims, dim);
    if (is_inner || Contains(outer_dims, outer_dim)) dims.push_back(dim);
    if (!is_inner) ++outer_dim;
  }
  return b.Op(node.op_name(), {inner->operand(0)}, {{"dims", dims}});
}

// What a reduction of a broadcast is: a reduction of what was broadcast, over `dims`, of elements that repeat `count` times.
struct ReducedBroadcast {
  Value x;
  Ints dims;
  int64_t count = 1;
};

std::optional<ReducedBroadcast> ReducedBroadcastOf(Node& node) {
  Node* broadcast = MadeBy(node.operand(0), "broadcast");
  if (!broadcast) return std::nullopt;
  const Ints& from = broadcast->attr<Ints>("dims");
  ReducedBroadcast reduced{broadcast->operand(0), {}};
  bool repeats = false;
  for (int64_t dim : node.attr<Ints>("dims")) {
    const auto it = std::find(from.begin(), from.end(), dim);
    if (it != from.end()) {
      reduced.dims.push_back(it - from.begin());
    } else {
      reduced.count *= broadcast->type(0).shape[dim];
      repeats = true;
    }
  }
  if (!repeats || reduced.count == 0) return std::nullopt;
  return reduced;
}

// What is left of the broadcast when its reduced dimensions are gone.
Value BroadcastRest(Node& node, Value reduced, Builder& b) {
  const Ints& from = node.operand(0).node->attr<Ints>("dims");
  const Ints& gone = node.attr<Ints>("dims");
  Ints dims;
  for (int64_t dim : from) {
    if (Contains(gone, dim)) continue;
    dims.push_back(dim - std::count_if(gone.begin(), gone.end(), [&](int64_t other) { return other < dim; }));
  }
  return b.Broadcast(reduced, node.type(0).shape, dims);
}

// reduce_sum(broadcast(x)) ==> broadcast(reduce_sum(x) * n)
Value SumOfBroadcast(Node& node, Builder& b) {
  const std::optional<ReducedBroadcast> reduced = ReducedBroadcastOf(node);
  if (!reduced) return Value();
  const Tensor count = Tensor::Scalar(node.type(0).dtype, static_cast<double>(reduced->count));
  if (count.At(0) != static_cast<double>(reduced->count)) return Value();
  const Value sum = b.ReduceSum(reduced->x, reduced->dims);
  return BroadcastRest(node, b.Mul(sum, Splat(b, count, sum ? sum.shape() : Shape())), b);
}

// reduce_max(broadcast(x)) ==> broadcast(reduce_max(x))
Value ExtremeOfBroadcast(Node& node, Builder& b) {
  const std::optional<ReducedBroadcast> reduced = ReducedBroadcastOf(node);
  if (!reduced) return Value();
  const Value x = reduced->dims.empty() ? reduced->x : b.Op(node.op_name(), {reduced->x}, {{"dims", reduced->dims}});
  return BroadcastRest(node, x, b);
}

// Whether a transpose swaps the last two dimensions and no others.
bool SwapsLastTwo(const Node& transpose) {
  Ints permutation = transpose.attr<Ints>("permutation");
  if (permutation.size() < 2) return false;
  std::swap(permutation[permutation.size() - 1], permutation[permutation.size() - 2]);
  return std::is_sorted(permutation.begin(), permutation.end());
}

// matmul(transpose(x), y) ==> matmul(x, y) {transpose_a}
Value MatMulOfTranspose(Node& node, Builder& b) {
  Value x = node.operand(0), y = node.operand(1);
  bool transpose_a = node.attr<bool>("transpose_a"), transpose_b = node.attr<bool>("transpose_b");
  if (Node* transpose = MadeBy(x, "transpose"); transpose && SwapsLastTwo(*transpose)) {
    x = transpose->operand(0);
    transpose_a = !transpose_a;
  }
  if (Node* transpose = MadeBy(y, "transpose"); transpose && SwapsLastTwo(*transpose)) {
    y = transpose->operand(0);
    transpose_b = !transpose_b;
  }
  if (x == node.operand(0) && y == node.operand(1)) return Value();
  return b.MatMul(x, y, transpose_a, transpose_b);
}

// transpose(matmul(x, y)) ==> matmul(y, x) {transpose_a, transpose_b}
Value TransposeOfMatMul(Node& node, Builder& b) {
  Node* matmul = MadeBy(node.operand(0), "matmul");
  if (!matmul || !SwapsLastTwo(node) || !HasOneUse(b.graph(), matmul->result())) return Value();
  return b.MatMul(matmul->operand(1), matmul->operand(0), !matmul->attr<bool>("transpose_b"),
                  !matmul->attr<bool>("transpose_a"));
}

}  // namespace

std::vector<SimplifyRule> ReductionRules() {
  std::vector<SimplifyRule> rules = {
      {"reduce_sum_of_broadcast", "reduce_sum", SumOfBroadcast, /*one_rank_only=*/true},
      {"reduce_max_of_broadcast", "reduce_max", ExtremeOfBroadcast, /*one_rank_only=*/true},
      {"reduce_min_of_broadcast", "reduce_min", ExtremeOfBroadcast, /*one_rank_only=*/true},
      {"matmul_of_transpose", "matmul", MatMulOfTranspose},
      {"transpose_of_matmul", "transpose", TransposeOfMatMul},
  };
  static constexpr struct {
    std::string_view op, nothing, unit_dims, twice;
  } kReductions[] = {
      {"reduce_sum", "reduce_sum_nothing", "reduce_sum_unit_dims", "reduce_sum_reduce_sum"},
      {"reduce_max", "reduce_max_nothing", "reduce_max_unit_dims", "reduce_max_reduce_max"},
      {"reduce_min", "reduce_min_nothing", "reduce_min_unit_dims", "reduce_min_reduce_min"},
      {"reduce_prod", "reduce_prod_nothing", "reduce_prod_unit_dims", "reduce_prod_reduce_prod"},
  };
  for (const auto& reduction : kReductions) {
    rules.push_back({reduction.nothing, reduction.op, ReduceNothing});
    rules.push_back({reduction.unit_dims, reduction.op, ReduceUnitDims, /*one_rank_only=*/true});
    rules.push_back({reduction.twice, reduction.op, ReduceReduce});
  }
  return rules;
}

}  // namespace lockstep::passes
