#include "test/random_graph/compare.h"

#include <algorithm>
#include <cmath>
#include <cstdlib>
#include <filesystem>
#include <fstream>
#include <unordered_map>

#include "core/interpreter.h"
#include "core/op_def.h"
#include "core/printer.h"
#include "core/verifier.h"
#include "test/meaning/meaning.h"

namespace lockstep {
namespace {

// Copies the program without the results for which `keep` returns false, and without nodes and inputs that are then
// unused. `replaced`, if not null, becomes inputs with the values `tensors`.
RandomProgram Copy(const RandomProgram& program, const std::function<bool(size_t)>& keep,
                   const Node* replaced = nullptr, const std::vector<Tensor>& tensors = {}) {
  std::unordered_map<const Node*, bool> needed;
  for (size_t i = 0; i < program.graph.results().size(); ++i) {
    if (keep(i)) needed[program.graph.results()[i].value.node] = true;
  }
  for (auto it = program.graph.nodes().rbegin(); it != program.graph.nodes().rend(); ++it) {
    if (!needed[&*it] || &*it == replaced) continue;
    for (Value operand : it->operands()) needed[operand.node] = true;
  }
  RandomProgram copy;
  copy.graph.set_name(program.graph.name());
  std::unordered_map<Value, Value, ValueHash> map;
  const auto add_input = [&](Value value, bool is_state, const PlacementMap& placements, const Tensor& tensor) {
    const absl::StatusOr<Value> input = copy.graph.AddInput(value.name(), value.type(), is_state, placements);
    LOCKSTEP_CHECK(input.ok()) << input.status();
    copy.inputs.push_back(tensor);
    map[value] = *input;
  };
  for (size_t i = 0; i < program.graph.inputs().size(); ++i) {
    const Input& input = program.graph.inputs()[i];
    const bool is_updated =
        std::any_of(program.graph.results().begin(), program.graph.results().end(), [&](const Result& result) {
          return result.is_state && result.name == input.name() &&
                 keep(static_cast<size_t>(&result - program.graph.results().data()));
        });
    if (needed[input.value.node] || is_updated)
      add_input(input.value, input.is_state, input.placements(), program.inputs[i]);
  }
  for (const Node& node : program.graph.nodes()) {
    if (!needed[&node]) continue;
    Node& mutable_node = const_cast<Node&>(node);
    if (&node == replaced) {
      for (size_t i = 0; i < tensors.size(); ++i) add_input(mutable_node.result(i), false, {}, tensors[i]);
      continue;
    }
    const absl::StatusOr<Node*> made = copy.graph.InsertCopy(node, map);
    LOCKSTEP_CHECK(made.ok()) << made.status();
  }
  for (size_t i = 0; i < program.graph.results().size(); ++i) {
    if (!keep(i)) continue;
    const Result& result = program.graph.results()[i];
    const absl::Status added = result.is_state ? copy.graph.AddStateResult(result.name, map.at(result.value))
                                               : copy.graph.AddResult(result.name, map.at(result.value));
    LOCKSTEP_CHECK(added.ok()) << added;
  }
  return copy;
}

// The values of a node's results.
std::vector<Tensor> ValuesOf(const RandomProgram& program, const Node& node) {
  Graph graph = program.graph.Clone();
  while (!graph.results().empty()) graph.RemoveResult(0);
  for (Node& clone : graph.nodes()) {
    if (clone.result_name(0) != node.result_name(0)) continue;
    for (size_t i = 0; i < clone.num_results(); ++i)
      LOCKSTEP_CHECK(graph.AddResult(std::to_string(i), clone.result(i)).ok());
  }
  absl::StatusOr<std::vector<Tensor>> values = InterpretOneRank(graph, program.inputs);
  LOCKSTEP_CHECK(values.ok()) << values.status();
  return *std::move(values);
}

bool ShrinkOnce(RandomProgram& program, const std::function<bool(const RandomProgram&)>& fails) {
  const auto take_if_fails = [&](RandomProgram smaller) {
    if (!fails(smaller)) return false;
    program = std::move(smaller);
    return true;
  };
  for (size_t dropped = program.graph.results().size(); dropped-- > 0;) {
    if (program.graph.results().size() > 1 && take_if_fails(Copy(program, [&](size_t i) { return i != dropped; })))
      return true;
  }
  for (const Node& node : program.graph.nodes()) {
    if (take_if_fails(Copy(program, [](size_t) { return true; }, &node, ValuesOf(program, node)))) return true;
  }
  // Replaces the only result by one of its operands.
  for (size_t i = 0; program.graph.results().size() == 1; ++i) {
    RandomProgram nearer{program.graph.Clone(), program.inputs};
    const Result& result = nearer.graph.results()[0];
    if (i >= result.value.node->operands().size()) break;
    const Value operand = result.value.node->operand(i);
    nearer.graph.RemoveResult(0);
    LOCKSTEP_CHECK(nearer.graph.AddResult("y", operand).ok()) << operand.name();
    if (take_if_fails(Copy(nearer, [](size_t) { return true; }))) return true;
  }
  return false;
}

// Compares `graph`, after some passes, with the program on one rank.
absl::Status CheckMeaning(const RandomProgram& program, const Graph& graph) {
  const absl::StatusOr<std::vector<Tensor>> expected =
      InterpretOneRank(AsOnRanks(program.graph, graph.mesh()), program.inputs);
  RETURN_IF_ERROR(Annotate(expected.status(), "before the passes"));
  RETURN_IF_ERROR(Verify(graph));
  return CheckAgainstOneRank(graph, program.inputs, *expected, ToleranceOf(program.graph));
}

}  // namespace

absl::Status CheckResults(const RandomProgram& program, const std::vector<Tensor>& found) {
  absl::StatusOr<std::vector<Tensor>> expected = InterpretOneRank(program.graph, program.inputs);
  RETURN_IF_ERROR(Annotate(expected.status(), "before the passes"));
  if (found.size() != expected->size()) {
    return Internal() << "there were " << expected->size() << " results, now there are " << found.size();
  }
  const double tolerance = ToleranceOf(program.graph);
  for (size_t i = 0; i < expected->size(); ++i) {
    RETURN_IF_ERROR(CheckClose(program.graph.results()[i].name, (*expected)[i], found[i], tolerance));
  }
  return absl::OkStatus();
}

absl::Status CheckPasses(const RandomProgram& program, const std::vector<passes::Pass>& passes, bool* changed) {
  Graph graph = program.graph.Clone();
  passes::PassDebug debug;
  debug.on_change = [&](const passes::Pass&, const std::string&, const Graph&) {
    if (changed) *changed = true;
  };
  RETURN_IF_ERROR(passes::RunPasses(passes, graph, debug));
  const absl::StatusOr<Graph> parsed = ParseGraph(graph.ToString());
  RETURN_IF_ERROR(Annotate(parsed.status(), "the text after the passes"));
  if (parsed->ToString() != graph.ToString()) {
    return Internal() << "the text after the passes does not parse back to itself";
  }
  const absl::StatusOr<std::vector<Tensor>> found = InterpretOneRank(graph, program.inputs);
  RETURN_IF_ERROR(Annotate(found.status(), "after the passes"));
  return CheckResults(program, *found);
}

Graph AsOnRanks(const Graph& graph, const Mesh& mesh) {
  Graph result = graph.Clone();
  if (mesh.empty()) return result;
  for (Node& node : result.nodes()) {
    const auto statistics = node.attributes().find("statistics");
    if (statistics == node.attributes().end() || statistics->second != Attribute(std::string("rank"))) continue;
    int64_t groups = node.attr<int64_t>("groups");
    for (const auto& [axis, placement] : node.operand(0).placements()) {
      if (placement.is_split(0) && mesh.has_axis(axis)) groups *= *mesh.axis_size(axis);
    }
    for (const absl::Status& set : {result.SetAttribute(&node, "groups", groups),
                                    result.SetAttribute(&node, "statistics", std::string("global"))})
      LOCKSTEP_CHECK(set.ok()) << set;
  }
  return result;
}

absl::Status CheckOnRanks(const RandomProgram& program, const std::vector<passes::Pass>& passes,
                          std::map<std::string, int>* num_changed, size_t num_known) {
  Graph graph = program.graph.Clone();
  for (size_t i = 0; i < passes.size(); ++i) {
    const std::string where = "pass " + std::to_string(i) + ", " + passes[i].name;
    const absl::StatusOr<bool> changed = passes[i].run(graph);
    RETURN_IF_ERROR(Annotate(changed.status(), where));
    if (!*changed) continue;
    if (num_changed) ++(*num_changed)[passes[i].name];
    if (i >= num_known) RETURN_IF_ERROR(Annotate(CheckMeaning(program, graph), where));
  }
  if (graph.mesh().empty()) return Internal() << "the program has no mesh after the passes";
  return absl::OkStatus();
}

RandomProgram Shrink(const RandomProgram& program, const std::function<bool(const RandomProgram&)>& fails) {
  RandomProgram smallest = Copy(program, [](size_t) { return true; });
  while (ShrinkOnce(smallest, fails)) {
  }
  return smallest;
}

std::string WriteReproducer(const RandomProgram& program, const std::string& passes, const std::string& name) {
  const char* folder = std::getenv("TEST_UNDECLARED_OUTPUTS_DIR");  // set by Bazel
  const std::filesystem::path path =
      (folder ? std::filesystem::path(folder) : std::filesystem::temp_directory_path()) / (name + ".ir");
  std::ofstream file(path);
  file << "// passes=" << passes << "\n";
  for (size_t i = 0; i < program.inputs.size(); ++i) {
    file << "// %" << program.graph.inputs()[i].name() << " = " << program.inputs[i].ToString() << "\n";
  }
  file << program.graph.ToString();
  return path.string();
}

}  // namespace lockstep
