#include "passes/bodies.h"

#include "core/op_def.h"

namespace lockstep::passes {

absl::StatusOr<bool> InBodies(Graph& graph, const std::function<absl::StatusOr<bool>(Graph& body)>& run) {
  bool any_changed = false;
  for (Node& node : graph.nodes()) {
    if (!node.op().has_trait(kLoop)) continue;
    Graph body = node.attr<Region>("body").graph().Clone();
    body.set_mesh(graph.mesh(), graph.is_local());  // so that nodes that are built in a placed body are placed
    absl::StatusOr<bool> changed = run(body);
    if (!changed.ok()) return Annotate(changed.status(), "in the body of " + node.Describe());
    if (!*changed) continue;
    body.set_mesh(Mesh());
    // The types of the results do not change, so they keep their placements.
    RETURN_IF_ERROR(graph.SetAttribute(&node, "body", Region(std::move(body))));
    any_changed = true;
  }
  return any_changed;
}

}  // namespace lockstep::passes
