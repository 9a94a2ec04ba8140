#include "passes/optimize/one_pass_statistics.h"

#include "core/op_def.h"
#include "passes/bodies.h"

namespace lockstep::passes {
namespace {

absl::StatusOr<bool> SetOnePass(Graph& graph) {
  ASSIGN_OR_RETURN(bool changed, InBodies(graph, SetOnePass));
  for (Node& node : graph.nodes()) {
    const auto one_pass = node.attributes().find("one_pass");
    if (one_pass == node.attributes().end() || one_pass->second == Attribute(true)) continue;
    RETURN_IF_ERROR(graph.SetAttribute(&node, "one_pass", true));
    changed = true;
  }
  return changed;
}

}  // namespace

Pass OnePassStatistics(bool fast_f64) {
  if (!fast_f64) return {"one-pass-statistics", [](Graph&) { return false; }, Keeps::kEveryValue};
  return {"one-pass-statistics", SetOnePass};
}

}  // namespace lockstep::passes
