#include "backends/codegen/body_key.h"

#include <unordered_map>

namespace lockstep {

std::string BodyKey(const Graph& body) {
  std::unordered_map<Value, size_t, ValueHash> number;
  std::string text;
  const auto define = [&](Value value) {
    const size_t next = number.size();
    number.emplace(value, next);
    text += " " + value.type().ToString();
  };
  const auto use = [&](Value value) { text += " %" + std::to_string(number.at(value)); };
  for (const Input& input : body.inputs()) define(input.value);
  for (const Node& node : body.nodes()) {
    text += "\n" + node.op_name();
    for (Value operand : node.operands()) use(operand);
    text += AttributesToString(node.attributes()) + " :";
    for (size_t i = 0; i < node.num_results(); ++i) define({const_cast<Node*>(&node), static_cast<int>(i)});
  }
  text += "\nreturn";
  for (const Result& result : body.results()) use(result.value);
  return text;
}

}  // namespace lockstep
