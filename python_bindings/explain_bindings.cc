// The data of Graph.explain() and Executable.explain(): a compilation for one rank, without loading it, and what each
// pass changed. lockstep/_graph/explain.py makes an Explanation of it.

#include <nanobind/stl/pair.h>
#include <nanobind/stl/string.h>
#include <nanobind/stl/vector.h>

#include <algorithm>
#include <memory>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "backends/compile.h"
#include "core/op_def.h"
#include "core/text.h"
#include "passes/distribute/plan_costs.h"
#include "python_bindings/bindings.h"
#include "python_bindings/errors.h"
#include "python_bindings/loaded_executable.h"
#include "python_bindings/released_gil.h"

namespace lockstep::python {

namespace nb = nanobind;
using namespace nb::literals;

namespace {

// The numbers of a graph before or after a pass.
struct Counts {
  int64_t nodes = 0;
  int64_t collectives = 0;  // with pushes and pulls
  int64_t bytes = 0;        // of their operands, on a rank that has them
};

Counts CountsOf(const Graph& graph) {
  Counts counts;
  for (const Node& node : graph.nodes()) {
    ++counts.nodes;
    if (!node.op().has_trait(kCollective) && !node.op().has_trait(kOfServers)) continue;
    ++counts.collectives;
    for (Value operand : node.operands()) {
      counts.bytes += graph.is_local() ? static_cast<int64_t>(operand.type().num_bytes())
                                       : passes::LocalBytes(operand.type(), operand.placements(), graph.mesh());
    }
  }
  return counts;
}

// A pass that changed the program. `before` is the text of the graph before it.
struct Change {
  std::string pass, before;
  Counts after;
};

struct Explained {
  std::string strategy;
  Counts given;
  std::vector<Change> changes;
  Executable executable;
};

Explained Explain(const Graph& graph, const Backend& backend, CompileOptions options) {
  Explained explained{.strategy = options.ToString(), .given = CountsOf(graph), .changes = {}, .executable = {}};
  options.verify = false;
  options.debug = {};
  options.debug.on_change = [&](const passes::Pass& pass, const std::string& before, const Graph& after) {
    explained.changes.push_back({pass.name, before, CountsOf(after)});
  };
  explained.executable = ValueOrThrow(Compile(graph.Clone(), backend, options));
  return explained;
}

const char* KindOf(const StepInfo& step) {
  switch (step.kind) {
    case StepKind::kKernel:
    case StepKind::kCopy: return "kernel";
    case StepKind::kStart: return "start";
    case StepKind::kWait: return "wait";
    case StepKind::kPush: return "push";
    case StepKind::kStartPull: return "start_pull";
    case StepKind::kWaitPull: return "wait_pull";
  }
  return "";
}

nb::object Described(const std::optional<CollectiveInfo>& collective, const Mesh& mesh) {
  if (!collective) return nb::none();
  const CollectiveTraits traits = TraitsOf(collective->op);
  nb::dict described;
  described["id"] = collective->id;
  described["op"] = std::string(traits.name);
  described["kind"] = traits.reduces ? std::string(ReduceKindName(collective->kind)) : "";
  described["dtype"] = std::string(DTypeName(collective->dtype));
  described["axis"] = collective->axis;
  described["ranks"] = collective->is_transfer ? 2 : mesh.axis_size(collective->axis).value_or(1);
  described["label"] = ToValidText(std::string(collective->name_in_messages()));
  described["is_urgent"] = collective->is_urgent;
  return described;
}

// Returns the last step before `end` after which `slice` has its value there: a kernel, a copy, or the wait for a
// collective or a pull. -1: none.
int ReadyAfter(const StepList& steps, size_t end, const BufferSlice& slice) {
  for (size_t i = end; i-- > 0;) {
    const std::vector<StepOperand>& writes = steps[i]->info().writes;
    const bool is_start = steps[i]->info().kind == StepKind::kStart || steps[i]->info().kind == StepKind::kStartPull;
    const auto overlaps = [&](const StepOperand& write) { return write.slice.Overlaps(slice); };
    if (!is_start && std::any_of(writes.begin(), writes.end(), overlaps)) return static_cast<int>(i);
  }
  return -1;
}

// Returns the operands of a step: name, bytes on this rank, and ReadyAfter.
nb::list Described(const StepList& steps, size_t number, const std::vector<StepOperand>& operands) {
  nb::list list;
  for (const StepOperand& operand : operands) {
    list.append(
        nb::make_tuple(ToValidText(operand.name), operand.slice.bytes, ReadyAfter(steps, number, operand.slice)));
  }
  return list;
}

nb::list StepsOf(const Executable& executable) {
  nb::list list;
  for (size_t i = 0; i < executable.steps.size(); ++i) {
    const StepInfo& step = executable.steps[i]->info();
    const bool communicates = step.kind != StepKind::kKernel && step.kind != StepKind::kCopy;
    nb::dict described;
    described["kind"] = KindOf(step);
    described["text"] = ToValidText(step.ToString(/*most=*/2));
    described["source"] = ToValidText(step.source);
    described["operations"] = step.work.operations;
    described["bytes"] = step.work.bytes;
    described["reads"] = communicates ? Described(executable.steps, i, step.reads) : nb::list();
    described["writes"] = communicates ? Described(executable.steps, i, step.writes) : nb::list();
    described["collective"] = Described(step.collective, executable.mesh);
    list.append(described);
  }
  return list;
}

nb::tuple Described(const Counts& counts) { return nb::make_tuple(counts.nodes, counts.collectives, counts.bytes); }

nb::dict Described(const Explained& explained) {
  nb::list passes, axes;
  for (const Change& change : explained.changes)
    passes.append(nb::make_tuple(change.pass, change.before, Described(change.after)));
  for (const MeshAxis& axis : explained.executable.mesh.axes()) axes.append(nb::make_tuple(axis.name, axis.size));
  nb::dict described;
  described["mesh"] = axes;
  described["strategy"] = ToValidText(explained.strategy);
  described["given"] = Described(explained.given);
  described["passes"] = passes;
  described["text"] = explained.executable.graph_text;
  described["steps"] = StepsOf(explained.executable);
  return described;
}

nb::dict ExplainModel(const Model& model, const std::string& backend_name, int64_t num_ranks, int64_t rank,
                      LoadOptions options) {
  const std::unique_ptr<Backend> backend = ValueOrThrow(CreateBackend(backend_name));
  options.mesh = ValueOrThrow(MeshOfRanks(options, num_ranks));
  options.rank = rank;
  return Described([&] {
    ReleasedGil released;
    return Explain(model.graph, *backend, options);
  }());
}

nb::dict ExplainLoaded(const LoadedExecutable& self) {
  return Described([&] {
    ReleasedGil released;
    return Explain(self.graph, *self.backend, self.options);
  }());
}

}  // namespace

void BindExplain(nb::module_& module, ExecutableClass& executable) {
  module.def("_explain", &ExplainModel, "graph"_a, "backend"_a, "ranks"_a, "rank"_a, "options"_a,
             nb::sig("def _explain(graph: Graph, backend: str, ranks: int, rank: int, options: _CompileOptions) -> "
                     "dict[str, typing.Any]"));
  executable.def("_explain", &ExplainLoaded, nb::sig("def _explain(self) -> dict[str, typing.Any]"))
      .def(
          "_given", [](const LoadedExecutable& self) { return Model{self.graph.Clone(), {}, self.origin, {}, {}}; },
          "The one-rank program of which it was compiled.", nb::sig("def _given(self) -> Graph"))
      .def(
          "explain",
          [](nb::object self, nb::object depth) {
            return nb::module_::import_("lockstep._graph.explain").attr("explain_executable")(self, depth);
          },
          "depth"_a = nb::none(),
          "The step as Graph.explain() of its program explains it, for this rank and its options, and with the times\n"
          "of the last calls in place of estimates, if there were calls. It is compiled again, which takes as long as\n"
          "compile(). Ranks may call it without each other.",
          nb::sig("def explain(self, depth: int | None = None) -> lockstep._graph.explain.Explanation"));
}

}  // namespace lockstep::python
