#include "passes/optimize/cse.h"

#include <algorithm>
#include <map>
#include <vector>

#include "core/op_def.h"
#include "passes/bodies.h"
#include "passes/optimize/hoist_invariants.h"

namespace lockstep::passes {
namespace {

// Nodes with equal keys compute the same. Attributes are compared as text, which is bit by bit: -0.0 differs from 0.0,
// and NaN equals NaN. The elements of a tensor are many, so they are compared as bytes.
struct Key {
  const OpDef* op;
  std::vector<std::pair<int64_t, int>> operands;  // node ids, result indices
  std::string attributes;
  bool operator<(const Key& other) const {
    if (op != other.op) return op->name() < other.op->name();
    if (operands != other.operands) return operands < other.operands;
    return attributes < other.attributes;
  }
};

std::string AttributesKey(const AttributeMap& attributes) {
  std::string key;
  for (const auto& [name, value] : attributes) {
    key += name + "=";
    if (const Tensor* tensor = std::get_if<Tensor>(&value)) {
      key += tensor->type().ToString();
      key.append(reinterpret_cast<const char*>(tensor->bytes()), tensor->num_bytes());
    } else {
      key += AttributeToString(value);
    }
    key += ";";
  }
  return key;
}

// Placements are part of the key: a slice of a broadcast and the whole of it have the same operands and attributes.
std::string PlacementsKey(const Node& node) {
  std::string key;
  for (size_t i = 0; i < node.num_results(); ++i) {
    for (const auto& [axis, placement] : node.placements(i)) key += axis + ":" + placement.ToString() + ";";
    key += "|";
  }
  return key;
}

Key KeyOf(const Node& node) {
  Key key{&node.op(), {}, AttributesKey(node.attributes()) + PlacementsKey(node)};
  for (Value operand : node.operands()) key.operands.emplace_back(operand.node->id(), operand.index);
  if (node.op().has_trait(kCommutative)) std::sort(key.operands.begin(), key.operands.end());
  return key;
}

absl::StatusOr<bool> MergeEqualNodes(Graph& graph) {
  std::map<Key, Node*> seen;
  ASSIGN_OR_RETURN(bool changed, InBodies(graph, MergeEqualNodes));
  ASSIGN_OR_RETURN(const bool hoisted, HoistInvariants(graph));  // nodes that are equal in all iterations
  changed = changed || hoisted;
  for (auto it = graph.nodes().begin(); it != graph.nodes().end();) {
    Node& node = *it++;
    if (node.op().has_trait(kCollective)) continue;
    const auto [first, inserted] = seen.emplace(KeyOf(node), &node);
    if (inserted) continue;
    for (size_t i = 0; i < node.num_results(); ++i) graph.ReplaceUses(node.result(i), first->second->result(i));
    graph.Erase(&node);
    changed = true;
  }
  return changed;
}

}  // namespace

Pass Cse() { return {"cse", MergeEqualNodes, Keeps::kEveryValue}; }

}  // namespace lockstep::passes
