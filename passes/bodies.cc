#include "passes/bodies.h"

namespace lockstep::passes {

absl::StatusOr<bool> InBodies(Graph& graph, const std::function<absl::StatusOr<bool>(Graph& body)>& run) {
  bool any_changed = false;
  for (Node& node : graph.nodes()) {
    if (!node.Is("scan")) continue;
    Graph body = node.attr<Region>("body").graph().Clone();
    body.set_mesh(graph.mesh(), graph.is_local());  // so that what is built in a placed body is placed
    absl::StatusOr<bool> changed = run(body);
    if (!changed.ok()) return Annotate(changed.status(), "in the body of " + node.Describe());
    if (!*changed) continue;
    body.set_mesh(Mesh());
    // Another name for the same value is no other type: results keep their placements with their values.
    RETURN_IF_ERROR(graph.SetAttribute(&node, "body", Region(std::move(body))));
    any_changed = true;
  }
  return any_changed;
}

}  // namespace lockstep::passes
