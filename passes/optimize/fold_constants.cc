#include "passes/optimize/fold_constants.h"

#include <optional>

#include "core/builder.h"
#include "core/interpreter.h"
#include "core/op_def.h"
#include "core/ops/op_list.h"
#include "core/placement_rules.h"
#include "passes/bodies.h"
#include "passes/simplify/constants.h"

namespace lockstep::passes {
namespace {

// Returns the elements of all results of `node`; nullopt if an operand is not constant or too large, or if the
// evaluation fails.
std::optional<std::vector<Tensor>> Evaluate(Node& node, const FoldOptions& options) {
  std::vector<Tensor> broadcasts;
  broadcasts.reserve(node.operands().size());
  std::vector<const Tensor*> operands;
  for (Value operand : node.operands()) {
    const Tensor* tensor = ConstantOf(operand);
    if (!tensor && MadeBy(operand, BroadcastOp()) && operand.type().num_elements() <= options.max_elements) {
      if (const Tensor* inner = ConstantOf(operand.node->operand(0))) {
        absl::StatusOr<std::vector<Tensor>> repeated = EvaluateNode(*operand.node, {inner});
        if (!repeated.ok()) return std::nullopt;
        tensor = &broadcasts.emplace_back(std::move((*repeated)[0]));
      }
    }
    if (!tensor) return std::nullopt;
    operands.push_back(tensor);
  }
  absl::StatusOr<std::vector<Tensor>> results = EvaluateNode(node, operands);
  if (!results.ok()) return std::nullopt;
  return *std::move(results);
}

// Replaces each result by a constant of the same name.
absl::StatusOr<bool> Fold(Graph& graph, Node& node, const FoldOptions& options) {
  for (size_t i = 0; i < node.num_results(); ++i) {
    // A constant is replicated, so it cannot replace a value with another placement.
    if (node.type(i).num_elements() > options.max_elements || !node.placements(i).empty()) return false;
  }
  std::optional<std::vector<Tensor>> tensors = Evaluate(node, options);
  if (!tensors) return false;
  Builder b(graph, &node, node.source());
  std::vector<Value> constants;
  std::vector<std::string> names;
  for (size_t i = 0; i < node.num_results(); ++i) {
    constants.push_back(b.Constant(std::move((*tensors)[i])));
    RETURN_IF_ERROR(b.status());
    names.push_back(node.result_name(i));
    graph.ReplaceUses(node.result(i), constants[i]);
  }
  graph.Erase(&node);
  for (size_t i = 0; i < constants.size(); ++i) graph.SetName(constants[i], names[i]);
  return true;
}

// Evaluates an elementwise op of splats once, on scalars, and broadcasts the result.
absl::StatusOr<bool> FoldSplat(Graph& graph, Node& node) {
  if (!node.op().has_trait(kElementwise) || node.num_results() != 1 || node.type(0).shape.rank() == 0) return false;
  std::vector<Tensor> scalars;
  for (Value operand : node.operands()) {
    std::optional<Tensor> scalar = SplatOf(operand);
    if (!scalar) return false;
    scalars.push_back(*std::move(scalar));
  }
  Builder b(graph, &node, node.source());
  std::vector<Value> operands;
  std::vector<const Tensor*> tensors;
  for (const Tensor& scalar : scalars) {
    operands.push_back(b.Constant(scalar));
    tensors.push_back(&scalar);
  }
  const Value on_scalars = b.Op(node.op_name(), operands, node.attributes());
  RETURN_IF_ERROR(b.status());
  const absl::StatusOr<std::vector<Tensor>> result = EvaluateNode(*on_scalars.node, tensors);
  graph.Erase(on_scalars.node);
  for (Value operand : operands) graph.Erase(operand.node);
  if (!result.ok()) return false;
  Value folded = Splat(b, (*result)[0], node.type(0).shape);
  RETURN_IF_ERROR(b.status());
  ASSIGN_OR_RETURN(folded, PlacedLike(graph, folded, node.placements(), &node));
  const std::string name = node.result_name(0);
  graph.ReplaceUses(node.result(), folded);
  graph.Erase(&node);
  graph.SetName(folded, name);
  return true;
}

bool MayFold(const Node& node) {
  // A rematerialised op, such as a broadcast, is smaller than its elements.
  if (node.op().has_trait(kRematerialised)) return false;
  if (node.op().has_trait(kLoop))
    return false;  // evaluating many iterations by the reference meanings may take minutes
  return node.op().eval() && !node.op().has_trait(kCollective) && !node.operands().empty();
}

absl::StatusOr<bool> FoldAll(Graph& graph, const FoldOptions& options) {
  ASSIGN_OR_RETURN(bool changed, InBodies(graph, [&](Graph& body) { return FoldAll(body, options); }));
  for (auto it = graph.nodes().begin(); it != graph.nodes().end();) {
    Node& node = *it++;
    if (!MayFold(node)) continue;
    ASSIGN_OR_RETURN(bool folded, FoldSplat(graph, node));
    if (!folded) {
      ASSIGN_OR_RETURN(folded, Fold(graph, node, options));
    }
    changed = changed || folded;
  }
  return changed;
}

}  // namespace

Pass FoldConstants(FoldOptions options) {
  return {"fold-constants", [options](Graph& graph) { return FoldAll(graph, options); }, Keeps::kEveryValue};
}

}  // namespace lockstep::passes
