#include "passes/training/inference_mode.h"

#include "core/op_def.h"
#include "passes/bodies.h"
#include "passes/legalize/decompose.h"

namespace lockstep::passes {
namespace {

absl::StatusOr<bool> TakeOutDropouts(Graph& graph) {
  ASSIGN_OR_RETURN(bool changed, InBodies(graph, TakeOutDropouts));
  for (auto it = graph.nodes().begin(); it != graph.nodes().end();) {
    if (!it->Is("dropout")) {
      ++it;
      continue;
    }
    changed = true;
    if (graph.IsUsed(it->result(1))) {
      ASSIGN_OR_RETURN(it, ReplaceByDecomposition(graph, it));
      continue;
    }
    Node& dropout = *it++;
    graph.ReplaceUses(dropout.result(0), dropout.operand(0));
    graph.Erase(&dropout);
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

Pass InferenceMode() { return {"inference-mode", TakeOutDropouts, Keeps::kEveryValue}; }

}  // namespace lockstep::passes
