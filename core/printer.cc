#include "core/printer.h"

#include <cctype>

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

}  // namespace

std::string PrintNode(const Node& node, const PrintOptions& options) {
  std::string text;
  for (size_t i = 0; i < node.num_results(); ++i) {
    text += (i ? ", %" : "%") + QuotedIfNeeded(node.result_name(i));
  }
  text += " = " + node.op_name();
  for (size_t i = 0; i < node.operands().size(); ++i) text += (i ? ", " : " ") + Ref(node.operand(i));
  AttributeMap shown;
  for (const auto& [name, value] : node.attributes()) {
    const OpDef::AttributeDef* def = node.op().FindAttribute(name);
    if (def->required || def->example != value) shown.emplace(name, value);
  }
  if (!shown.empty()) text += " " + AttributesToString(shown);
  text += " :";
  for (size_t i = 0; i < node.num_results(); ++i)
    text += (i ? ", " : " ") + node.type(i).ToString() + PlacementsToString(node.placements(i));
  if (options.sources && !node.source().empty()) text += " @" + Quoted(node.source());
  return text;
}

std::string PrintGraph(const Graph& graph, const PrintOptions& options) {
  std::string text;
  if (!graph.mesh().empty()) text += "mesh " + graph.mesh().ToString() + "\n";
  if (graph.is_local()) text += "local ";
  text += "graph @" + QuotedIfNeeded(graph.name()) + "(";
  for (size_t i = 0; i < graph.inputs().size(); ++i) {
    const Input& input = graph.inputs()[i];
    text += std::string(i ? ", " : "") + (input.is_state ? "state " : "") + Ref(input.value) + ": " +
            input.value.type().ToString() + PlacementsToString(input.placements());
  }
  text += ") -> (";
  for (size_t i = 0; i < graph.results().size(); ++i) {
    const Result& result = graph.results()[i];
    text += std::string(i ? ", " : "") + (result.is_state ? "%" : "") + QuotedIfNeeded(result.name) + ": " +
            result.value.type().ToString() + PlacementsToString(result.placements);
  }
  text += ") {\n";
  for (const Node& node : graph.nodes()) {
    std::string line = PrintNode(node, options);  // several lines if it has a region
    for (size_t at = line.find('\n'); at != std::string::npos; at = line.find('\n', at + 1)) line.insert(at + 1, "  ");
    text += "  " + line + "\n";
  }
  text += "  return";
  for (size_t i = 0; i < graph.results().size(); ++i) text += (i ? ", " : " ") + Ref(graph.results()[i].value);
  return text + "\n}\n";
}

}  // namespace lockstep
