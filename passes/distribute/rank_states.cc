#include "passes/distribute/rank_states.h"

#include <vector>

#include "core/builder.h"

namespace lockstep::passes {

Shape WithFront(int64_t extent, const Shape& shape) {
  std::vector<int64_t> extents = shape.dims();
  extents.insert(extents.begin(), extent);
  return Shape(extents);
}

absl::Status AddStateResultWith(Graph& graph, std::string_view trained, Value state, Value next,
                                const std::string& source) {
  const Input* const owner = graph.FindInput(trained);
  const Result* const result = graph.FindResult(trained, /*is_state=*/true);
  Builder b(graph, nullptr, source);
  for (Value update = result ? result->value : Value(); update && update.node->Is("select");
       update = update.node->operand(1)) {
    const Node& condition = *update.node->operand(0).node;
    if (update.node->operand(2) != owner->value || !condition.Is("broadcast") ||
        condition.operand(0).shape().rank() != 0)
      break;
    next = b.Select(b.Broadcast(condition.operand(0), next.shape(), {}), next, state);
  }
  RETURN_IF_ERROR(b.status());
  const std::string name = state.name();
  if (!next.node->is_input()) graph.SetName(next, name + ".next");
  return graph.AddStateResult(name, next, state.placements());
}

}  // namespace lockstep::passes
