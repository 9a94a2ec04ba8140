#include "passes/distribute/plan_costs.h"

#include <algorithm>
#include <unordered_map>
#include <vector>

#include "core/op_def.h"

namespace lockstep::passes {
namespace {

bool IsFree(const Node& node) {
  const OpDef& op = node.op();
  return op.is_mover() || op.has_trait(kMovement) || op.has_trait(kGenerator) || op.has_trait(kRematerialised) ||
         &op == &InputOp();
}

// Returns the number of ranks that share the work of a node.
double Share(std::span<const PlacementMap> operands, std::span<const PlacementMap> results, const Mesh& mesh) {
  double share = 1;
  const auto splits = [](std::span<const PlacementMap> values, const std::string& axis) {
    return std::any_of(values.begin(), values.end(),
                       [&](const PlacementMap& each) { return PlacementAlong(each, axis).is_split(); });
  };
  for (const MeshAxis& axis : mesh.axes()) {
    if (splits(operands, axis.name) || splits(results, axis.name)) share *= static_cast<double>(axis.size);
  }
  return share;
}

double SecondsOfCollective(const Node& node, std::span<const PlacementMap> operands, const Mesh& mesh,
                           const PlanMachine& machine) {
  const std::string& axis = node.attr<std::string>("axis");
  int64_t bytes = 0;
  for (size_t i = 0; i < operands.size(); ++i) {
    PlacementMap others = operands[i];
    others.erase(axis);
    bytes += LocalBytes(node.operand(i).type(), others, mesh);
  }
  return CollectiveSeconds(node.op().collective() == CollectiveOp::kAllReduce, bytes, axis, machine);
}

}  // namespace

int64_t LocalBytes(const TensorType& type, const PlacementMap& placements, const Mesh& mesh) {
  int64_t share = 1;
  for (const auto& [axis, placement] : placements) {
    if (placement.is_split()) share *= mesh.axis_size(axis).value_or(1);
  }
  return static_cast<int64_t>(type.num_bytes()) / share;
}

double CollectiveSeconds(bool is_all_reduce, int64_t bytes, const std::string& axis, const PlanMachine& machine) {
  const auto cost = machine.axes.find(axis);
  if (cost == machine.axes.end()) return 0;
  const double seconds = static_cast<double>(bytes) * cost->second.seconds_per_byte;
  return cost->second.latency + (is_all_reduce ? seconds : seconds / 2);
}

double NodeSeconds(const Node& node, std::span<const PlacementMap> operands, std::span<const PlacementMap> results,
                   const Mesh& mesh, const PlanMachine& machine) {
  if (node.op().collective()) return SecondsOfCollective(node, operands, mesh, machine);
  if (IsFree(node)) return 0;
  double bytes = 0;
  for (size_t i = 0; i < results.size(); ++i) bytes += static_cast<double>(LocalBytes(node.type(i), results[i], mesh));
  if (!node.op().has_trait(kElementwise)) {
    for (size_t i = 0; i < operands.size(); ++i)
      bytes += static_cast<double>(LocalBytes(node.operand(i).type(), operands[i], mesh));
  }
  const double operations = FlopsOf(node) / Share(operands, results, mesh);
  return std::max(operations / machine.operations, bytes / machine.bandwidth);
}

std::unordered_set<const Node*> ForwardNodes(const Graph& graph) {
  std::unordered_set<const Node*> forward;
  const Result* const loss = graph.FindResult("loss");
  if (loss != nullptr) forward.insert(loss->value.node);
  for (const Result& result : graph.results()) {
    if (loss == nullptr && !result.is_state) forward.insert(result.value.node);
  }
  for (auto it = graph.nodes().rbegin(); it != graph.nodes().rend(); ++it) {
    if (!forward.contains(&*it)) continue;
    for (const Value& operand : it->operands()) forward.insert(operand.node);
  }
  return forward;
}

bool IsStored(const Value& value) { return !IsFree(*value.node); }

PlanCosts CostsOf(const Graph& graph, const PlanMachine& machine) {
  PlanCosts costs;
  const Mesh& mesh = graph.mesh();
  for (const Input& input : graph.inputs()) {
    if (input.is_state) costs.states += LocalBytes(input.value.type(), input.placements(), mesh);
  }
  const std::unordered_set<const Node*> forward = ForwardNodes(graph);
  std::unordered_set<Value, ValueHash> kept, gradients;
  for (const Node& node : graph.nodes()) {
    std::vector<PlacementMap> operands, results;
    for (const Value& operand : node.operands()) operands.push_back(operand.placements());
    for (size_t i = 0; i < node.num_results(); ++i) results.push_back(node.placements(i));
    const double seconds = NodeSeconds(node, operands, results, mesh, machine);
    (node.op().collective() ? costs.communication : costs.compute) += seconds;
    if (node.op().has_trait(kOptimizer)) {
      const Value gradient = node.operand(node.op().operand_names().size() - 1);
      if (gradients.insert(gradient).second)
        costs.gradients += LocalBytes(gradient.type(), gradient.placements(), mesh);
    }
    if (forward.contains(&node)) continue;
    for (const Value& operand : node.operands()) {
      if (forward.contains(operand.node) && IsStored(operand) && kept.insert(operand).second)
        costs.activations += LocalBytes(operand.type(), operand.placements(), mesh);
    }
  }
  return costs;
}

}  // namespace lockstep::passes
