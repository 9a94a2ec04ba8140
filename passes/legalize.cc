#include "passes/legalize.h"

#include <iterator>

#include "core/builder.h"
#include "core/op_def.h"

namespace lockstep::passes {
namespace {

// Replaces `node` and returns the first node of what stands in its place (or the one behind it, if there is none).
absl::StatusOr<std::list<Node>::iterator> Decompose(Graph& graph, std::list<Node>::iterator it) {
  Node& node = *it;
  if (!node.op().decompose()) {
    return Unimplemented() << "the target has no kernel for " << node.Describe() << ", and the op has no decomposition";
  }
  const bool is_first = it == graph.nodes().begin();
  const auto before = is_first ? it : std::prev(it);
  Builder builder(graph, &node, node.source());
  DecomposeContext context(node, builder);
  const std::vector<Value> values = node.op().decompose()(context);
  RETURN_IF_ERROR(builder.status());
  std::vector<std::string> names;
  for (size_t i = 0; i < values.size(); ++i) {
    names.push_back(node.result_name(i));
    graph.ReplaceUses(node.result(i), values[i]);
  }
  graph.Erase(&node);
  // The results keep their names, unless the decomposition returns one of its operands.
  for (size_t i = 0; i < values.size(); ++i) {
    if (values[i].node->source() == builder.source() && !values[i].node->Is("input"))
      graph.SetName(values[i], names[i]);
  }
  return is_first ? graph.nodes().begin() : std::next(before);
}

}  // namespace

Pass Legalize(std::function<bool(const Node&)> supports) {
  return {"legalize", [supports = std::move(supports)](Graph& graph) -> absl::StatusOr<bool> {
            bool changed = false;
            for (auto it = graph.nodes().begin(); it != graph.nodes().end();) {
              if (supports(*it)) {
                ++it;
                continue;
              }
              ASSIGN_OR_RETURN(it, Decompose(graph, it));
              changed = true;
            }
            return changed;
          }};
}

}  // namespace lockstep::passes
