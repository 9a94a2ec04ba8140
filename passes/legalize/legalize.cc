#include "passes/legalize/legalize.h"

#include "core/op_def.h"
#include "passes/bodies.h"
#include "passes/legalize/decompose.h"

namespace lockstep::passes {

namespace {

absl::StatusOr<bool> LegalizeGraph(Graph& graph, const std::function<bool(const Node&)>& supports) {
  ASSIGN_OR_RETURN(bool changed, InBodies(graph, [&](Graph& body) { return LegalizeGraph(body, supports); }));
  for (auto it = graph.nodes().begin(); it != graph.nodes().end();) {
    if (supports(*it)) {
      ++it;
      continue;
    }
    if (!it->op().decompose()) {
      return Unimplemented() << "the target has no kernel for " << it->Describe()
                             << ", and the op has no decomposition";
    }
    ASSIGN_OR_RETURN(it, ReplaceByDecomposition(graph, it));
    changed = true;
  }
  return changed;
}

}  // namespace

Pass Legalize(std::function<bool(const Node&)> supports) {
  return {"legalize", [supports = std::move(supports)](Graph& graph) { return LegalizeGraph(graph, supports); }};
}

}  // namespace lockstep::passes
