// The search of placements (passes/distribute/plan_search.h) for lockstep.plan, which makes a Plan of the results.

#include <nanobind/stl/map.h>
#include <nanobind/stl/optional.h>
#include <nanobind/stl/pair.h>
#include <nanobind/stl/string.h>
#include <nanobind/stl/vector.h>

#include <set>

#include "passes/distribute/plan_search.h"
#include "passes/optimize/cse.h"
#include "passes/optimize/dce.h"
#include "passes/optimize/fold_constants.h"
#include "passes/optimize/recognize_attention.h"
#include "passes/optimize/separate_rows.h"
#include "passes/simplify/simplify.h"
#include "passes/training/inference_mode.h"
#include "python_bindings/bindings.h"
#include "python_bindings/errors.h"
#include "python_bindings/released_gil.h"

namespace lockstep::python {

namespace nb = nanobind;
using namespace nb::literals;

namespace {

nb::dict Described(const passes::PlanCosts& costs) {
  nb::dict described;
  described["compute"] = costs.compute;
  described["communication"] = costs.communication;
  described["states"] = costs.states;
  described["gradients"] = costs.gradients;
  described["activations"] = costs.activations;
  return described;
}

nb::dict Described(const passes::PlacementPlan& plan) {
  nb::dict described;
  described["splits"] = nb::cast(plan.splits);
  described["costs"] = Described(plan.costs);
  return described;
}

// Returns the states except those kept for other states, each with its type, its splits, and its bytes on a rank.
nb::list StatesOf(const Graph& graph, const Mesh& mesh) {
  std::set<std::string> kept;
  for (const Input& input : graph.inputs()) {
    if (!input.is_state) continue;
    for (const std::string& name : passes::StatesOfOptimizerFor(graph, input)) kept.insert(name);
  }
  nb::list states;
  for (const Input& input : graph.inputs()) {
    if (!input.is_state || kept.contains(input.name())) continue;
    std::map<std::string, int64_t> dims;
    for (const auto& [axis, placement] : input.placements()) {
      if (placement.is_split()) dims.emplace(axis, placement.dim());
    }
    states.append(nb::make_tuple(input.name(), input.value.type().ToString(), dims,
                                 passes::LocalBytes(input.value.type(), input.placements(), mesh)));
  }
  return states;
}

nb::dict Plan(const Model& model, const std::vector<std::pair<std::string, int64_t>>& axes,
              const passes::PlacementChoices& placements, double operations, double bandwidth,
              const std::map<std::string, std::pair<double, double>>& links, std::optional<int64_t> memory_limit) {
  Graph graph = model.graph.Clone();
  Mesh mesh;
  passes::PlanSearch search;
  {
    ReleasedGil released;
    mesh = ValueOrThrow(MeshOf(axes));
    // The same passes as in a compilation before it distributes.
    ThrowIfError(passes::RunPasses({passes::InferenceMode(), passes::RecognizeAttention(), passes::SeparateRows(),
                                    passes::Simplify(), passes::FoldConstants(), passes::Cse(), passes::Dce()},
                                   graph));
    ThrowIfError(passes::SplitInputs(graph, ValueOrThrow(passes::SplitsOf(graph, placements)), mesh));
    passes::PlanOptions options;
    options.machine.operations = operations;
    options.machine.bandwidth = bandwidth;
    for (const auto& [axis, cost] : links) options.machine.axes[axis] = {cost.first, cost.second};
    options.memory_limit = memory_limit;
    search = ValueOrThrow(passes::SearchPlan(graph, mesh, options));
    ThrowIfError(passes::SplitInputs(graph, search.best.splits, mesh));
  }
  nb::list runners_up;
  for (const passes::PlacementPlan& plan : search.runners_up) runners_up.append(Described(plan));
  nb::dict described;
  described["best"] = Described(search.best);
  described["runners_up"] = runners_up;
  described["replicated"] = Described(search.replicated);
  described["exact"] = search.is_exact;
  described["states"] = StatesOf(graph, mesh);
  return described;
}

}  // namespace

void BindPlan(nb::module_& module) {
  module.def("_plan", &Plan, "graph"_a, "mesh"_a, "placements"_a, "operations"_a, "bandwidth"_a, "links"_a,
             "memory_limit"_a.none(),
             nb::sig("def _plan(graph: Graph, mesh: collections.abc.Sequence[tuple[str, int]], "
                     "placements: collections.abc.Sequence[tuple[str, collections.abc.Mapping[str, int]]], "
                     "operations: float, bandwidth: float, "
                     "links: collections.abc.Mapping[str, tuple[float, float]], memory_limit: int | None) -> "
                     "dict[str, typing.Any]"));
}

}  // namespace lockstep::python
