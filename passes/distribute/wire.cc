#include "passes/distribute/wire.h"

#include <functional>
#include <string>
#include <utility>
#include <vector>

#include "absl/strings/match.h"
#include "core/op_def.h"
#include "core/ops/int8_wire.h"
#include "core/ops/op_list.h"
#include "passes/distribute/quantize_wire.h"

namespace lockstep::passes {
namespace {

constexpr double kInt8Bytes = 1 + 4.0 / ops::kWireBlock;  // bytes of an element, including its share of the scale

// Returns the wanted all_reduces along axes of several ranks. Along an axis of one rank nothing travels.
std::vector<Node*> AllReducesOf(Graph& graph, const std::function<bool(const Node&)>& is_wanted) {
  std::vector<Node*> found;
  for (Node& node : graph.nodes()) {
    if (node.op().collective() != CollectiveOp::kAllReduce || !is_wanted(node)) continue;
    if (graph.mesh().axis_size(node.attr<std::string>("axis")).value_or(1) > 1) found.push_back(&node);
  }
  return found;
}

// Returns true if a node sums gradients that may travel as a smaller dtype.
bool SumsGradients(const Node& node) {
  if (node.attr<std::string>("kind") != "sum" || !node.attr<std::string>("wire").empty()) return false;
  for (Value operand : node.operands()) {
    if (operand.dtype() != DType::kF32 || !absl::StartsWith(operand.name(), "grad/")) return false;
  }
  return true;
}

// Returns true if the rounding error of the gradients can be kept for the next step. This requires that the graph
// updates their states, and that no other axis splits them: the blocks of a rank would differ from those of the whole.
bool CanKeepResidual(const Graph& graph, const Node& node) {
  for (Value operand : node.operands()) {
    if (!StateOfGradient(graph, operand.name())) return false;
    for (const auto& [axis, placement] : operand.placements()) {
      if (axis != node.attr<std::string>("axis") && !placement.is_replicated()) return false;
    }
  }
  return true;
}

bool TravelsAsBF16(const Node& node) { return node.attr<std::string>("wire") == "bf16"; }

absl::StatusOr<bool> Choose(Graph& graph, const std::string& dtype) {
  if (dtype.empty()) return false;
  const std::vector<Node*> gradients = AllReducesOf(graph, [&](const Node& node) {
    return SumsGradients(node) && (dtype != "int8" || CanKeepResidual(graph, node));
  });
  for (Node* node : gradients) {
    NodeSpec spec{&node->op(), node->operands(), node->attributes(), node->source(), {}};
    spec.attributes["wire"] = dtype;
    std::vector<std::string> names;
    for (size_t i = 0; i < node->num_results(); ++i) {
      names.push_back(node->result_name(i));
      spec.placements.push_back(node->placements(i));
    }
    ASSIGN_OR_RETURN(Node* const chosen, graph.Insert(std::move(spec), node));
    for (size_t i = 0; i < names.size(); ++i) graph.ReplaceUses(node->result(i), chosen->result(i));
    graph.Erase(node);
    for (size_t i = 0; i < names.size(); ++i) graph.SetName(chosen->result(i), names[i]);
  }
  return !gradients.empty();
}

absl::StatusOr<Value> Converted(Graph& graph, Value value, DType dtype, const PlacementMap& placements,
                                const std::string& source, Node* before) {
  NodeSpec spec{&ConvertOp(), {value}, {{"dtype", dtype}, {"rounds_parts", dtype == DType::kBF16}}, source, {}};
  spec.placements = {placements};
  ASSIGN_OR_RETURN(Node* const converted, graph.Insert(std::move(spec), before));
  return converted->result();
}

absl::Status LowerNode(Graph& graph, Node& node) {
  const std::string wire = node.attr<std::string>("wire");
  NodeSpec spec{&node.op(), {}, node.attributes(), node.source(), {}};
  spec.attributes["wire"] = std::string();
  for (Value operand : node.operands()) {
    ASSIGN_OR_RETURN(const Value narrow,
                     Converted(graph, operand, DType::kBF16, operand.placements(), node.source(), &node));
    graph.SetName(narrow, operand.name() + "/" + wire);
    spec.operands.push_back(narrow);
  }
  for (size_t i = 0; i < node.num_results(); ++i) spec.placements.push_back(node.placements(i));
  ASSIGN_OR_RETURN(Node* const reduced, graph.Insert(std::move(spec), &node));
  std::vector<std::string> names;
  std::vector<Value> results;
  for (size_t i = 0; i < node.num_results(); ++i) {
    names.push_back(node.result_name(i));
    ASSIGN_OR_RETURN(const Value wide, Converted(graph, reduced->result(i), node.type(i).dtype, node.placements(i),
                                                 node.source(), &node));
    graph.ReplaceUses(node.result(i), wide);
    results.push_back(wide);
  }
  graph.Erase(&node);
  for (size_t i = 0; i < names.size(); ++i) {
    graph.SetName(reduced->result(i), names[i] + "/" + wire);
    graph.SetName(results[i], names[i]);
  }
  return absl::OkStatus();
}

absl::StatusOr<bool> Lower(Graph& graph) {
  const std::vector<Node*> nodes = AllReducesOf(graph, TravelsAsBF16);
  for (Node* node : nodes) RETURN_IF_ERROR(LowerNode(graph, *node));
  return !nodes.empty();
}

}  // namespace

double WireByteFraction(const Node& reduction) {
  if (!reduction.attributes().contains("wire")) return 1;  // a reduce_scatter
  const std::string wire = reduction.attr<std::string>("wire");
  return wire == "int8" ? kInt8Bytes / sizeof(float) : wire == "bf16" ? 0.5 : 1;
}

Pass ChooseWire(std::string dtype) {
  return {"choose-wire", [dtype = std::move(dtype)](Graph& graph) { return Choose(graph, dtype); }, Keeps::kNothing,
          /*needs_mesh=*/true};
}

Pass LowerWire() { return {"lower-wire", Lower, Keeps::kMeaning, /*needs_mesh=*/true}; }

}  // namespace lockstep::passes
