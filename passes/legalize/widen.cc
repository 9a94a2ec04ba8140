#include "passes/legalize/widen.h"

#include <algorithm>
#include <string>
#include <vector>

#include "core/builder.h"
#include "core/op_def.h"
#include "passes/bodies.h"

namespace lockstep::passes {
namespace {

bool IsHalf(const TensorType& type) { return IsFloat(type.dtype) && SizeOf(type.dtype) == 2; }

bool TakesHalves(const Node& node) {
  return std::any_of(node.operands().begin(), node.operands().end(),
                     [](const Value& operand) { return IsHalf(operand.type()); });
}

absl::Status Widen(Graph& graph, Node& node) {
  Builder b(graph, &node, node.source());
  std::vector<Value> operands;
  for (const Value operand : node.operands())
    operands.push_back(IsHalf(operand.type()) ? b.Convert(operand, DType::kF32) : operand);
  RETURN_IF_ERROR(b.status());
  ASSIGN_OR_RETURN(Node* const wide,
                   graph.Insert({&node.op(), std::move(operands), node.attributes(), node.source(), {}}, &node));
  std::vector<Value> results;
  std::vector<std::string> names;
  for (size_t i = 0; i < node.num_results(); ++i) {
    results.push_back(b.Convert(wide->result(i), node.type(i).dtype));
    RETURN_IF_ERROR(b.status());
    names.push_back(node.result_name(i));
    graph.ReplaceUses(node.result(i), results.back());
  }
  graph.Erase(&node);
  for (size_t i = 0; i < results.size(); ++i) graph.SetName(results[i], names[i]);
  return absl::OkStatus();
}

absl::StatusOr<bool> WidenAll(Graph& graph, const std::function<bool(const Node&)>& prefers_f32) {
  if (!prefers_f32) return false;
  ASSIGN_OR_RETURN(const bool any_in_bodies, InBodies(graph, [&](Graph& body) { return WidenAll(body, prefers_f32); }));
  std::vector<Node*> nodes;
  for (Node& node : graph.nodes()) {
    if (TakesHalves(node) && prefers_f32(node)) nodes.push_back(&node);
  }
  for (Node* node : nodes) RETURN_IF_ERROR(Widen(graph, *node));
  return any_in_bodies || !nodes.empty();
}

}  // namespace

Pass WidenHalves(std::function<bool(const Node&)> prefers_f32) {
  return {"widen-halves",
          [prefers_f32 = std::move(prefers_f32)](Graph& graph) { return WidenAll(graph, prefers_f32); }};
}

}  // namespace lockstep::passes
