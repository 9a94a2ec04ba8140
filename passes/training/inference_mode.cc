#include "passes/training/inference_mode.h"

#include <algorithm>
#include <initializer_list>
#include <string_view>

#include "core/op_def.h"
#include "passes/bodies.h"
#include "passes/legalize/decompose.h"

namespace lockstep::passes {
namespace {

// Replaces each node of these ops by its first operand, in bodies too. If the mask of a dropout is used, it becomes a
// constant.
absl::StatusOr<bool> ReplaceByOperand(Graph& graph, std::initializer_list<std::string_view> ops) {
  ASSIGN_OR_RETURN(bool changed, InBodies(graph, [&](Graph& body) { return ReplaceByOperand(body, ops); }));
  for (auto it = graph.nodes().begin(); it != graph.nodes().end();) {
    if (std::find(ops.begin(), ops.end(), it->op().name()) == ops.end()) {
      ++it;
      continue;
    }
    changed = true;
    if (it->num_results() > 1 && graph.IsUsed(it->result(1))) {
      ASSIGN_OR_RETURN(it, ReplaceByDecomposition(graph, it));
      continue;
    }
    Node& identity = *it++;
    graph.ReplaceUses(identity.result(0), identity.operand(0));
    graph.Erase(&identity);
  }
  return changed;
}

}  // namespace

const Node* FindDropout(const Node& node) {
  if (node.Is("dropout")) return &node;
  for (const auto& [name, value] : node.attributes()) {
    const auto* const region = std::get_if<Region>(&value);
    if (region == nullptr) continue;
    for (const Node& inner : region->graph().nodes()) {
      if (const Node* const found = FindDropout(inner)) return found;
    }
  }
  return nullptr;
}

absl::StatusOr<bool> RemoveDropouts(Graph& graph) { return ReplaceByOperand(graph, {"dropout"}); }

Pass InferenceMode() {
  return {"inference-mode", [](Graph& graph) { return ReplaceByOperand(graph, {"dropout", "stop_gradient"}); },
          Keeps::kEveryValue};
}

}  // namespace lockstep::passes
