#include "backends/loops/loop_body.h"

#include "core/op_def.h"

namespace lockstep {

absl::StatusOr<Graph> LoopBodyOf(const Node& node) {
  if (node.Is("fusion")) return node.attr<Region>("body").graph().Clone();
  Graph body(node.op_name());
  NodeSpec spec{&node.op(), {}, node.attributes(), node.source(), {}};
  for (size_t i = 0; i < node.operands().size(); ++i) {
    ASSIGN_OR_RETURN(const Value input, body.AddInput("x" + std::to_string(i), node.operand(i).type()));
    spec.operands.push_back(input);
  }
  ASSIGN_OR_RETURN(Node * inner, body.Insert(std::move(spec)));
  for (size_t i = 0; i < node.num_results(); ++i) {
    RETURN_IF_ERROR(body.AddResult("y" + std::to_string(i), inner->result(i)));
  }
  return body;
}

std::vector<std::string> RefusalMessages(const Graph& body) {
  std::vector<std::string> messages;
  for (const Node& node : body.nodes()) {
    std::string& message = messages.emplace_back();
    if (!node.op().refusal()) continue;
    message = node.op_name() + ": " + node.op().refusal()(node.attributes());
    if (!node.source().empty()) message += ", at " + node.source();
  }
  return messages;
}

}  // namespace lockstep
