#include "passes/legalize/legalize.h"

#include <string>

#include "core/op_def.h"
#include "passes/bodies.h"
#include "passes/legalize/decompose.h"

namespace lockstep::passes {

namespace {

// The types of what the node takes; those of its results if it takes nothing.
std::string TypesOf(const Node& node) {
  std::string types;
  for (const Value& operand : node.operands()) types += (types.empty() ? "" : ", ") + operand.type().ToString();
  return node.operands().empty() ? node.type().ToString() : types;
}

// `whole` describes the node of the program of which this one is a part; empty if it is that itself.
absl::Status NoKernel(const Node& node, const std::string& whole) {
  return Unimplemented() << "the target has no kernel for " << node.Describe() << " of " << TypesOf(node)
                         << (whole.empty() ? "" : ", a part of " + whole) << ", and the op has no decomposition";
}

absl::StatusOr<bool> LegalizeGraph(Graph& graph, const std::function<bool(const Node&)>& supports) {
  ASSIGN_OR_RETURN(bool changed, InBodies(graph, [&](Graph& body) { return LegalizeGraph(body, supports); }));
  std::string whole;  // what the nodes before `rest` are parts of
  auto rest = graph.nodes().begin();
  for (auto it = graph.nodes().begin(); it != graph.nodes().end();) {
    if (it == rest) {
      whole.clear();
      ++rest;
    }
    if (supports(*it)) {
      ++it;
      continue;
    }
    if (!it->op().decompose()) return NoKernel(*it, whole);
    if (whole.empty()) whole = it->Describe();
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
