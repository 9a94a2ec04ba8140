#include "passes/legalize/decompose.h"

#include <algorithm>
#include <iterator>
#include <string>
#include <vector>

#include "core/builder.h"
#include "core/op_def.h"
#include "core/placement_rules.h"

namespace lockstep::passes {

absl::StatusOr<std::list<Node>::iterator> ReplaceByDecomposition(Graph& graph, std::list<Node>::iterator node) {
  const bool is_first = node == graph.nodes().begin();
  const auto before = is_first ? node : std::prev(node);
  Builder builder(graph, &*node, node->source());
  DecomposeContext context(*node, builder);
  std::vector<Value> values = node->op().decompose()(context);
  RETURN_IF_ERROR(builder.status());
  std::vector<std::string> names;
  for (size_t i = 0; i < values.size(); ++i) {
    ASSIGN_OR_RETURN(values[i], PlacedLike(graph, values[i], node->placements(i), &*node));
    names.push_back(node->result_name(i));
    graph.ReplaceUses(node->result(i), values[i]);
  }
  const std::vector<Value> operands(node->operands().begin(), node->operands().end());
  graph.Erase(&*node);
  for (size_t i = 0; i < values.size(); ++i) {
    const bool is_operand = std::find(operands.begin(), operands.end(), values[i]) != operands.end();
    if (!is_operand) graph.SetName(values[i], names[i]);
  }
  return is_first ? graph.nodes().begin() : std::next(before);
}

}  // namespace lockstep::passes
