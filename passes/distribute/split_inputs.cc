#include "passes/distribute/split_inputs.h"

#include <fnmatch.h>

#include <algorithm>
#include <functional>
#include <set>

#include "core/op_def.h"
#include "core/placement_rules.h"
#include "passes/state_names.h"

namespace lockstep::passes {
namespace {

absl::StatusOr<size_t> PositionOf(const Graph& graph, const std::string& name) {
  const std::vector<Input>& inputs = graph.inputs();
  const auto it = std::find_if(inputs.begin(), inputs.end(), [&](const Input& input) { return input.name() == name; });
  if (it != inputs.end()) return static_cast<size_t>(it - inputs.begin());
  ErrorStream error = NotFound() << "placement: graph @" << graph.name() << " has no input or state '" << name << "'";
  for (size_t i = 0; i < inputs.size(); ++i) error << (i ? ", " : "; there are ") << inputs[i].name();
  return error;
}

absl::Status SplitInput(Graph& graph, size_t position, const std::map<std::string, int64_t>& dims, const Mesh& mesh) {
  const Input& input = graph.inputs()[position];
  const Shape& shape = input.value.shape();
  PlacementMap placements = input.placements();
  for (const auto& [axis, dim] : dims) {
    const auto error = [&] {
      return InvalidArgument() << "placement: " << input.name() << " (" << input.value.type() << ") along axis " << axis
                               << ": ";
    };
    if (!mesh.has_axis(axis)) return error() << "the mesh " << mesh.ToString() << " has no such axis";
    if (!shape.has_dim(dim)) return error() << "there is no dimension " << dim;
    placements[axis] = Placement::Split(dim);
    const auto other =
        std::find_if(placements.begin(), placements.end(), [&, &axis = axis, &dim = dim](const auto& each) {
          return each.first != axis && each.second.is_split(dim) && mesh.axis_size(each.first).value_or(1) > 1;
        });
    if (!SplitsEvenly(shape, placements, mesh)) {
      return error() << "the ranks of the mesh " << mesh.ToString() << " cannot share dimension " << dim << " evenly";
    }
    if (other != placements.end() && *mesh.axis_size(axis) > 1) {
      return error() << "axis " << other->first << " splits dimension " << dim
                     << " already, and a dimension that two axes split cannot be gathered";
    }
  }
  graph.set_input_placements(position, std::move(placements));
  return absl::OkStatus();
}

// Returns the entries of `dims` whose dimension has the same extent in `shape` as in `whole`. For example, a state with
// one element per row has no columns to split.
std::map<std::string, int64_t> DimsOf(const Shape& shape, const Shape& whole,
                                      const std::map<std::string, int64_t>& dims) {
  std::map<std::string, int64_t> common;
  for (const auto& [axis, dim] : dims) {
    if (shape.rank() == whole.rank() && shape[dim] == whole[dim]) common.emplace(axis, dim);
  }
  return common;
}

// Returns the first dimension that the ranks along the axis can share evenly and that no other axis splits; -1 if there
// is none.
int64_t FirstSharedDim(const Input& input, const Mesh& mesh, const std::string& axis) {
  const PlacementMap& placements = input.placements();
  for (int64_t dim = 0; dim < input.value.shape().rank(); ++dim) {
    const bool is_taken =
        std::any_of(placements.begin(), placements.end(), [&](const auto& each) { return each.second.is_split(dim); });
    if (!is_taken && SplitsEvenly(input.value.shape(), {{axis, Placement::Split(dim)}}, mesh)) return dim;
  }
  return -1;
}

std::string NamesOf(const Graph& graph) {
  std::string names;
  for (const Input& input : graph.inputs()) {
    if (!input.setting) names += (names.empty() ? "" : ", ") + input.name();
  }
  return names;
}

// Returns an error if the choices before it match all inputs that a choice matches, and one of them differs from it. A
// name that is given twice is allowed: `split` takes precedence over `placements`.
absl::Status CheckHasEffect(const PlacementChoices& choices, size_t position,
                            const std::function<bool(const std::string&, const Input&)>& matches, const Graph& graph) {
  const auto& [name, dims] = choices[position];
  const std::string* other = nullptr;
  for (const Input& input : graph.inputs()) {
    if (!matches(name, input)) continue;
    const auto first =
        std::find_if(choices.begin(), choices.end(), [&](const auto& each) { return matches(each.first, input); });
    if (first == choices.begin() + static_cast<std::ptrdiff_t>(position) || first->first == name)
      return absl::OkStatus();
    if (first->second != dims) other = &first->first;
  }
  if (other == nullptr) return absl::OkStatus();
  return InvalidArgument() << "placement: '" << name << "' has no effect: choices before it, such as '" << *other
                           << "', match all that it matches, and the first that matches counts";
}

// Returns an error if optimizer states would have to be split in a graph that is already distributed.
absl::Status CheckCanShard(const Graph& graph) {
  const std::string data(kDataAxis);
  if (graph.mesh().axis_size(data).value_or(1) < 2) return absl::OkStatus();
  const bool keeps = std::any_of(graph.nodes().begin(), graph.nodes().end(), [](const Node& node) {
    return node.op().has_trait(kOptimizer) && !node.op().optimizer().states.empty();
  });
  const bool shares = std::any_of(graph.inputs().begin(), graph.inputs().end(), [&](const Input& input) {
    return input.is_state && input.value.placement(data).is_split();
  });
  if (!keeps || shares) return absl::OkStatus();
  return InvalidArgument() << "shard_optimizer, or shared_weights, which includes it: graph @" << graph.name()
                           << " is distributed already, over " << graph.mesh().ToString()
                           << ", and each rank has its optimizer's states whole; compile the graph that was given to "
                           << "distribute(), or split some of these states in distribute()";
}

}  // namespace

std::vector<std::string> StatesOfOptimizerFor(const Graph& graph, const Input& state) {
  std::vector<std::string> names;
  for (const Node* user : state.value.node->users()) {
    if (!user->op().has_trait(kOptimizer) || user->operand(0) != state.value) continue;
    const Input* const average = graph.FindInput(AverageOf(state.name()));
    if (average != nullptr && average->is_state && average->value.type() == state.value.type())
      names.push_back(average->name());
    for (size_t i = 1; i <= user->op().optimizer().states.size(); ++i) {
      const Value operand = user->operand(i);
      const Input* input = graph.FindInput(operand.name());
      if (input != nullptr && input->value == operand && input->is_state) names.push_back(operand.name());
    }
  }
  return names;
}

absl::StatusOr<InputSplits> SplitsOf(const Graph& graph, const PlacementChoices& choices) {
  std::set<std::string> kept;
  for (const Input& input : graph.inputs()) {
    if (!input.is_state) continue;
    for (const std::string& name : StatesOfOptimizerFor(graph, input)) kept.insert(name);
  }
  const auto matches = [&](const std::string& choice, const Input& input) {
    if (choice == input.name()) return true;
    return !input.setting && !kept.contains(input.name()) &&
           fnmatch(choice.c_str(), input.name().c_str(), FNM_NOESCAPE) == 0;
  };
  const std::vector<Input>& inputs = graph.inputs();
  for (const auto& [name, dims] : choices) {
    if (std::any_of(inputs.begin(), inputs.end(), [&](const Input& input) { return matches(name, input); })) continue;
    return NotFound() << "placement: graph @" << graph.name() << " has no input or state '" << name
                      << "', and none that it matches; there are " << NamesOf(graph);
  }
  for (size_t i = 0; i < choices.size(); ++i) RETURN_IF_ERROR(CheckHasEffect(choices, i, matches, graph));
  InputSplits splits;
  for (const Input& input : inputs) {
    const auto first =
        std::find_if(choices.begin(), choices.end(), [&](const auto& each) { return matches(each.first, input); });
    if (first != choices.end()) splits.emplace(input.name(), first->second);
  }
  return splits;
}

absl::Status SplitInputs(Graph& graph, const InputSplits& splits, const Mesh& mesh) {
  if (splits.empty()) return absl::OkStatus();
  if (!graph.mesh().empty()) {
    return InvalidArgument() << "placement: graph @" << graph.name() << " is distributed already, over "
                             << graph.mesh().ToString();
  }
  for (const MeshAxis& axis : mesh.axes()) {
    if (axis.size < 1)
      return InvalidArgument() << "mesh axis " << axis.name << " has size " << axis.size << ", expected at least 1";
  }
  for (const auto& [name, dims] : splits) {
    ASSIGN_OR_RETURN(const size_t position, PositionOf(graph, name));
    RETURN_IF_ERROR(SplitInput(graph, position, dims, mesh));
    for (const std::string& kept : StatesOfOptimizerFor(graph, graph.inputs()[position])) {
      if (splits.contains(kept)) continue;
      ASSIGN_OR_RETURN(const size_t of_kept, PositionOf(graph, kept));
      const Shape &shape = graph.inputs()[of_kept].value.shape(), &whole = graph.inputs()[position].value.shape();
      RETURN_IF_ERROR(SplitInput(graph, of_kept, DimsOf(shape, whole, dims), mesh));
    }
  }
  return absl::OkStatus();
}

Pass SplitInputs(PlacementChoices choices, Mesh mesh) {
  const auto split = [choices = std::move(choices), mesh = std::move(mesh)](Graph& graph) -> absl::StatusOr<bool> {
    ASSIGN_OR_RETURN(const InputSplits splits, SplitsOf(graph, choices));
    RETURN_IF_ERROR(SplitInputs(graph, splits, mesh));
    return !splits.empty();
  };
  return {"split-inputs", split, Keeps::kEveryValue, /*needs_mesh=*/true};
}

InputSplits SplitsOfOptimizers(const Graph& graph, const Mesh& mesh, const std::string& axis) {
  InputSplits splits;
  if (!graph.mesh().empty() || !mesh.has_axis(axis)) return splits;
  for (const Input& state : graph.inputs()) {
    const Shape& shape = state.value.shape();
    const int64_t dim = state.is_state ? FirstSharedDim(state, mesh, axis) : -1;
    if (dim < 0 || !state.value.placement(axis).is_replicated()) continue;
    for (const std::string& name : StatesOfOptimizerFor(graph, state)) {
      const Input& kept = *graph.FindInput(name);
      if (kept.value.placement(axis).is_replicated() && !DimsOf(kept.value.shape(), shape, {{axis, dim}}).empty())
        splits[name][axis] = dim;
    }
  }
  return splits;
}

Pass ShardOptimizers(Mesh mesh) {
  const auto shard = [mesh = std::move(mesh)](Graph& graph) -> absl::StatusOr<bool> {
    if (mesh.empty()) return false;
    RETURN_IF_ERROR(CheckCanShard(graph));
    const InputSplits splits = SplitsOfOptimizers(graph, mesh, std::string(kDataAxis));
    RETURN_IF_ERROR(SplitInputs(graph, splits, mesh));
    return !splits.empty();
  };
  return {"shard-optimizers", shard, Keeps::kEveryValue, /*needs_mesh=*/true};
}

}  // namespace lockstep::passes
