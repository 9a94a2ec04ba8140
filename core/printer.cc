#include "core/printer.h"

#include <algorithm>
#include <cctype>
#include <cstring>
#include <vector>

#include "core/op_def.h"

namespace lockstep {
namespace {

std::string QuotedIfNeeded(std::string_view name) {
  bool plain = !name.empty();
  for (char c : name)
    plain = plain && (std::isalnum(static_cast<unsigned char>(c)) || c == '_' || c == '.' || c == '/');
  return plain ? std::string(name) : Quoted(name);
}

std::string Ref(Value value) { return "%" + QuotedIfNeeded(value.name()); }

std::string PlacementsToString(const PlacementMap& placements) {
  std::string text;
  for (const auto& [axis, placement] : placements) {
    if (placement.is_replicated()) continue;
    std::string one = placement.ToString();
    if (axis != kDataAxis) {
      if (one.back() == ')') one.insert(one.size() - 1, ", " + axis);
      else one += "(" + axis + ")";
    }
    text += " " + one;
  }
  return text;
}

// "graph of 5 nodes: mul, add, tanh"
std::string BriefRegion(const Region& region) {
  std::vector<std::string> ops;
  for (const Node& node : region.graph().nodes()) {
    if (std::find(ops.begin(), ops.end(), node.op_name()) == ops.end()) ops.push_back(node.op_name());
  }
  const size_t count = region.graph().nodes().size();
  std::string text = "graph of " + std::to_string(count) + (count == 1 ? " node: " : " nodes: ");
  for (size_t i = 0; i < ops.size(); ++i) text += (i ? ", " : "") + ops[i];
  return text;
}

std::string BriefTensor(const Tensor& tensor) {
  constexpr int64_t kShown = 4;
  if (tensor.num_elements() <= kShown || tensor.AllElementsEqual()) return tensor.ToString();
  // A tensor of only the elements that are shown.
  Tensor first(TensorType{tensor.dtype(), Shape({kShown})});
  std::memcpy(first.mutable_bytes(), tensor.bytes(), first.num_bytes());
  const std::string text = first.ToString();
  return "dense<" + tensor.type().ToString() + text.substr(text.find(':'), text.size() - text.find(':') - 1) + ", …>";
}

// The attributes that differ from the op's defaults; "" if there are none.
std::string Attributes(const Node& node, bool brief) {
  std::string text;
  for (const auto& [name, value] : node.attributes()) {
    const OpDef::AttributeDef* def = node.op().FindAttribute(name);
    if (!def->required && def->example == value) continue;
    text += (text.empty() ? " {" : ", ") + name + "=";
    const Region* const region = std::get_if<Region>(&value);
    const Tensor* const tensor = std::get_if<Tensor>(&value);
    if (const auto* ref = std::get_if<OperandRef>(&value)) text += Ref(node.operand(static_cast<size_t>(ref->index)));
    else if (brief && region != nullptr) text += BriefRegion(*region);
    else if (brief && tensor != nullptr) text += BriefTensor(*tensor);
    else text += AttributeToString(value);
  }
  return text.empty() ? text : text + "}";
}

// "state %w: f32[3]", "setting %rate: f64[] in [0.0, inf) = 0.1"
std::string PrintInput(const Input& input) {
  const std::string text =
      Ref(input.value) + ": " + input.value.type().ToString() + PlacementsToString(input.placements());
  if (!input.setting) return (input.is_state ? "state " : "") + text;
  return "setting " + text + " in " + input.setting->range.Brief() + " = " + DoubleToString(input.setting->value);
}

// The parts with ", " between them, or if `broken` each on its own indented line.
std::string Listed(const std::vector<std::string>& parts, bool broken) {
  std::string text;
  for (const std::string& part : parts) {
    if (&part != &parts.front()) text += broken ? "," : ", ";
    text += (broken ? "\n    " : "") + part;
  }
  return text;
}

}  // namespace

std::string PrintNode(const Node& node, const PrintOptions& options) {
  std::string text;
  for (size_t i = 0; i < node.num_results(); ++i) {
    text += (i ? ", %" : "%") + QuotedIfNeeded(node.result_name(i));
  }
  text += " = " + node.op_name();
  const size_t own = node.operands().size() - NumOperandRefs(node.attributes());
  for (size_t i = 0; i < own; ++i) text += (i ? ", " : " ") + Ref(node.operand(i));
  text += Attributes(node, options.brief) + " :";
  for (size_t i = 0; i < node.num_results(); ++i)
    text += (i ? ", " : " ") + node.type(i).ToString() + PlacementsToString(node.placements(i));
  if (options.sources && !options.brief && !node.source().empty()) text += " @" + Quoted(node.source());
  return text;
}

std::string PrintGraph(const Graph& graph, const PrintOptions& options) {
  std::string text;
  if (!graph.mesh().empty()) text += "mesh " + graph.mesh().ToString() + "\n";
  std::vector<std::string> inputs, results, returned;
  for (const Input& input : graph.inputs()) {
    inputs.push_back(PrintInput(input));
  }
  for (const Result& result : graph.results()) {
    results.push_back((result.is_state ? "%" : "") + QuotedIfNeeded(result.name) + ": " +
                      result.value.type().ToString() + PlacementsToString(result.placements));
    returned.push_back(Ref(result.value));
  }
  constexpr size_t kMaxInLine = 4;
  const auto listed = [&](const std::vector<std::string>& parts) {
    return Listed(parts, options.brief && parts.size() > kMaxInLine);
  };
  if (graph.is_local()) text += "local ";
  text += "graph @" + QuotedIfNeeded(graph.name()) + "(" + listed(inputs) + ") -> (" + listed(results);
  text += ") {\n";
  for (const Node& node : graph.nodes()) {
    std::string line = PrintNode(node, options);  // several lines if it has a region
    for (size_t at = line.find('\n'); at != std::string::npos; at = line.find('\n', at + 1)) line.insert(at + 1, "  ");
    text += "  " + line + "\n";
  }
  return text + "  return" + (returned.empty() ? "" : " ") + Listed(returned, false) + "\n}\n";
}

}  // namespace lockstep
