// The data of Graph.summary() and Graph.save_svg().

#include <nanobind/stl/string.h>
#include <nanobind/stl/vector.h>

#include <algorithm>
#include <map>
#include <unordered_map>

#include "core/op_def.h"
#include "core/ops/scan.h"
#include "passes/training/train_step.h"
#include "python_bindings/bindings.h"

namespace lockstep::python {
namespace {

// One part of the summary: a heading with the numbers of lines and elements, and the lines. Empty without lines.
class Section {
 public:
  explicit Section(std::string heading) : heading_(std::move(heading)) {}

  void Add(const std::string& name, const TensorType& type, const PlacementMap& placements,
           const std::string& group = "") {
    std::string line = "  " + name + ": " + type.ToString() + (group.empty() ? "" : ", group " + group);
    for (const auto& [axis, placement] : placements) {
      if (!placement.is_replicated()) line += " " + placement.ToString() + " along " + axis;
    }
    lines_.push_back(std::move(line));
    elements_ += type.num_elements();
  }
  void Add(const std::string& name, const Setting& setting) {
    lines_.push_back("  " + name + ": " + DoubleToString(setting.value) + " in " + setting.range.Brief());
    ++elements_;
  }

  std::string ToString() const {
    if (lines_.empty()) return "";
    std::string text =
        heading_ + " (" + std::to_string(lines_.size()) + ", " + std::to_string(elements_) + " elements)\n";
    for (const std::string& line : lines_) text += line + "\n";
    return text;
  }

 private:
  std::string heading_;
  std::vector<std::string> lines_;
  int64_t elements_ = 0;
};

// Returns the group of each state in a group: the pattern in its optimizer's settings, "optimizer/<pattern>/…".
std::map<std::string, std::string> GroupsOf(const Graph& graph) {
  constexpr std::string_view kPrefix = "optimizer/";
  std::map<std::string, std::string> groups;
  for (const Node& node : graph.nodes()) {
    if (!node.op().has_trait(kOptimizer)) continue;
    for (Value operand : node.operands()) {
      const Input* const input = graph.FindInput(operand.name());
      if (input == nullptr || !input->setting || !input->name().starts_with(kPrefix)) continue;
      const size_t begin = kPrefix.size(), end = input->name().rfind('/');
      if (end > begin) groups[node.operand(0).name()] = input->name().substr(begin, end - begin);
    }
  }
  return groups;
}

bool Contains(const std::vector<std::string>& names, const std::string& name) {
  return std::find(names.begin(), names.end(), name) != names.end();
}

}  // namespace

std::string Summary(const Model& model) {
  const Graph& graph = model.graph;
  const std::vector<std::string> trained_names = passes::StatesTrainedBy(graph);
  const std::map<std::string, std::string> groups = GroupsOf(graph);
  Section inputs("inputs"), settings("settings"), trained("trained states"), updated("other states that change"),
      fixed("states that stay"), constants("float initializers taken for constants"), results("results");
  for (const Input& input : graph.inputs()) {
    if (input.setting) {
      settings.Add(input.name(), *input.setting);
      continue;
    }
    const bool changes = graph.FindResult(input.name(), true) != nullptr;
    Section& section = !input.is_state                         ? inputs
                       : Contains(trained_names, input.name()) ? trained
                       : changes                               ? updated
                                                               : fixed;
    const auto group = groups.find(input.name());
    section.Add(input.name(), input.value.type(), input.placements(), group == groups.end() ? "" : group->second);
  }
  for (const Node& node : graph.nodes()) {
    if (node.is_constant() && Contains(model.constants, node.result_name()))
      constants.Add(node.result_name(), node.type(), {});
  }
  for (const Result& result : graph.results()) {
    if (!result.is_state) results.Add(result.name, result.value.type(), result.placements);
  }
  std::string text = "graph @" + graph.name();
  if (!graph.mesh().empty())
    text += (graph.is_local() ? " of a rank of the mesh " : " on the mesh ") + graph.mesh().ToString();
  text += ", " + std::to_string(graph.nodes().size()) + " nodes\n";
  for (const Section* section : {&inputs, &settings, &trained, &updated, &fixed, &constants, &results})
    text += section->ToString();
  for (const std::string& note : model.notes) text += "note: " + note + "\n";
  return text;
}

namespace nb = nanobind;

namespace {

// The label of a node's communication in a drawing, such as "all_reduce along data"; empty if there is none.
std::string CommunicationOf(const Node& node) {
  if (node.Is("push")) return "push to servers";
  if (node.Is("pull")) return "pull from servers";
  return node.op().has_trait(kCollective) ? node.op_name() + " along " + node.attr<std::string>("axis") : "";
}

// Returns a node for Python. `name_of` names its values, and `runs` is the number of times that it runs.
template <typename NameOf>
nb::dict Described(const Node& node, const NameOf& name_of, int64_t runs) {
  std::vector<std::string> operands, results, types;
  int64_t bytes = 0;
  for (Value operand : node.operands()) operands.push_back(name_of(operand));
  for (size_t i = 0; i < node.num_results(); ++i) {
    results.push_back(name_of(const_cast<Node&>(node).result(i)));
    types.push_back(node.type(i).ToString());
    bytes += static_cast<int64_t>(node.type(i).num_bytes());
  }
  nb::dict described;
  described["op"] = node.op_name();
  described["source"] = node.source();
  described["operands"] = operands;
  described["results"] = results;
  described["types"] = types;
  described["bytes"] = bytes;
  described["flops"] = FlopsOf(node) * static_cast<double>(runs);
  described["updates"] = node.op().has_trait(kOptimizer);
  described["communication"] = CommunicationOf(node);
  return described;
}

// Describes a loop over micro-batches by the nodes of its body. An input of the body has the name of the loop's
// operand, and a result that of the loop's result.
void DescribeBody(const Node& loop, nb::list& list) {
  const ScanForm form(loop);
  std::map<const Node*, std::string> inputs;
  std::unordered_map<Value, std::string, ValueHash> results;
  for (size_t i = 0; i < form.num_inputs(); ++i) inputs[form.body->inputs()[i].value.node] = loop.operand(i).name();
  for (size_t i = 0; i < form.num_results(); ++i) results.emplace(form.body->results()[i].value, loop.result_name(i));
  const auto name_of = [&](Value value) {
    if (const auto input = inputs.find(value.node); input != inputs.end()) return input->second;
    const auto result = results.find(value);
    return result == results.end() ? loop.result_name() + "/" + value.name() : result->second;
  };
  for (const Node& node : form.body->nodes()) list.append(Described(node, name_of, form.length));
}

}  // namespace

nb::list DescribeNodes(const Model& model) {
  nb::list list;
  for (const Node& node : model.graph.nodes()) {
    if (node.op().has_trait(kLoop) && node.attr<bool>("one_at_a_time")) DescribeBody(node, list);
    else list.append(Described(node, [](Value value) { return value.name(); }, /*runs=*/1));
  }
  return list;
}

}  // namespace lockstep::python
