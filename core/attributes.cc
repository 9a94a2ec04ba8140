#include "core/attributes.h"

#include <algorithm>
#include <cctype>

#include "core/graph.h"

namespace lockstep {
namespace {

bool IsIdentifier(std::string_view text) {
  if (text.empty() || !(std::isalpha(static_cast<unsigned char>(text[0])) || text[0] == '_')) return false;
  for (char c : text) {
    if (!std::isalnum(static_cast<unsigned char>(c)) && c != '_') return false;
  }
  // Words that would parse as something else.
  constexpr std::string_view kOthers[] = {"true", "false", "nan", "inf", "dense", "graph", "mesh"};
  return std::find(std::begin(kOthers), std::end(kOthers), text) == std::end(kOthers) && !DTypeFromName(text);
}

struct ToText {
  std::string operator()(bool value) const { return value ? "true" : "false"; }
  std::string operator()(int64_t value) const { return std::to_string(value); }
  std::string operator()(double value) const { return DoubleToString(value); }
  std::string operator()(const std::string& value) const { return IsIdentifier(value) ? value : Quoted(value); }
  std::string operator()(const std::vector<int64_t>& value) const { return ListToString(value); }
  std::string operator()(DType value) const { return std::string(DTypeName(value)); }
  std::string operator()(const Tensor& value) const { return value.ToString(); }
  std::string operator()(const Region& value) const { return value.ToString(); }
  std::string operator()(const OperandRef& value) const { return "operand " + std::to_string(value.index); }
};

}  // namespace

std::string Quoted(std::string_view text) {
  std::string result = "\"";
  for (char c : text) {
    if (c == '\n') {
      result += "\\n";
      continue;
    }
    if (c == '"' || c == '\\') result += '\\';
    result += c;
  }
  return result + "\"";
}

Region::Region() {
  static const std::shared_ptr<const Graph> empty = std::make_shared<const Graph>("empty");
  graph_ = empty;
}

Region::Region(Graph graph) : graph_(std::make_shared<const Graph>(std::move(graph))) {}

bool Region::operator==(const Region& other) const { return graph_ == other.graph_ || ToString() == other.ToString(); }

bool Region::empty() const { return graph_->inputs().empty() && graph_->nodes().empty() && graph_->results().empty(); }

std::string Region::ToString() const {
  std::string text = graph_->ToString();
  while (!text.empty() && text.back() == '\n') text.pop_back();
  return text;
}

std::string_view AttributeTypeName(const Attribute& attribute) {
  static constexpr std::string_view kNames[] = {"bool",  "int",    "float",  "string", "ints",
                                                "dtype", "tensor", "region", "operand"};
  return kNames[attribute.index()];
}

std::string AttributeToString(const Attribute& attribute) { return std::visit(ToText(), attribute); }

size_t NumOperandRefs(const AttributeMap& attributes) {
  return static_cast<size_t>(std::count_if(attributes.begin(), attributes.end(), [](const auto& attribute) {
    return std::holds_alternative<OperandRef>(attribute.second);
  }));
}

std::string AttributesToString(const AttributeMap& attributes) {
  if (attributes.empty()) return "";
  std::string text = "{";
  for (const auto& [name, value] : attributes) {
    if (text.size() > 1) text += ", ";
    text += name + "=" + AttributeToString(value);
  }
  return text + "}";
}

}  // namespace lockstep
