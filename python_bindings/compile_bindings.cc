// Bindings of lockstep.compile and its options.

#include <nanobind/stl/map.h>
#include <nanobind/stl/optional.h>
#include <nanobind/stl/pair.h>
#include <nanobind/stl/string.h>
#include <nanobind/stl/tuple.h>
#include <nanobind/stl/unique_ptr.h>
#include <nanobind/stl/vector.h>

#include <functional>
#include <map>
#include <memory>
#include <set>
#include <string>
#include <tuple>
#include <utility>
#include <vector>

#include "backends/compile.h"
#include "backends/compile_and_load.h"
#include "backends/option_table.h"
#include "core/op_def.h"
#include "passes/training/uneven.h"
#include "python_bindings/bindings.h"
#include "python_bindings/errors.h"
#include "python_bindings/loaded_executable.h"
#include "python_bindings/padded_rows.h"
#include "python_bindings/released_gil.h"
#include "runtime/exclusive_use.h"
#include "runtime/execution/agreement.h"

namespace lockstep::python {

namespace nb = nanobind;
using namespace nb::literals;

namespace {

void AddSlowDTypes(const Graph& graph, const std::function<bool(const Node&)>& prefers_f32,
                   std::set<std::string>& slow) {
  for (const Node& node : graph.nodes()) {
    if (node.op().has_trait(kLoop)) AddSlowDTypes(node.attr<Region>("body").graph(), prefers_f32, slow);
    if (node.operands().empty()) continue;
    const DType dtype = node.operand(0).dtype();
    const bool is_half = dtype == DType::kF16 || dtype == DType::kBF16;
    if (is_half && prefers_f32(node)) slow.emplace(DTypeName(dtype));
  }
}

// Returns the 16-bit dtypes whose products in the model are computed in f32 on this machine.
std::vector<std::string> SlowDTypes(const Model& model, const std::string& backend, const std::string& isa) {
  const std::unique_ptr<Backend> machine = ValueOrThrow(CreateBackend(backend));
  TargetOptions options;
  options.isa = isa;
  const Target target = ValueOrThrow(machine->MakeTarget(options));
  std::set<std::string> slow;
  if (target.prefers_f32) AddSlowDTypes(model.graph, target.prefers_f32, slow);
  return {slow.begin(), slow.end()};
}

// The times from which buckets are chosen, in nanoseconds (passes::MeasuredStep). For each gradient: its name, and the
// times `ready`, `needed` and `update`. For each axis: pairs of a number of bytes and the time that they take.
using Measured = std::pair<std::vector<std::tuple<std::string, int64_t, int64_t, int64_t>>,
                           std::map<std::string, std::vector<std::pair<int64_t, int64_t>>>>;

passes::MeasuredStep MeasuredStepOf(const Measured& given) {
  passes::MeasuredStep measured;
  for (const auto& [name, ready, needed, update] : given.first) measured.gradients[name] = {ready, needed, update};
  for (const auto& [axis, costs] : given.second) {
    std::vector<passes::CostTable::Point> points;
    for (const auto& [bytes, nanoseconds] : costs) points.push_back({bytes, nanoseconds});
    measured.costs.emplace(axis, passes::CostTable(std::move(points)));
  }
  return measured;
}

std::unique_ptr<LoadedExecutable> CompileModel(const Model& model, const std::string& backend, nb::object world,
                                               LoadOptions options, std::string dump) {
  auto loaded = std::make_unique<LoadedExecutable>();
  loaded->communicator = nb::cast<Communicator*>(world);
  loaded->world = std::move(world);
  loaded->origin = model.origin;
  loaded->is_uneven = passes::IsUneven(model.graph);
  loaded->batches = BatchesOf(model.graph);
  options.dump = std::move(dump);
  ReleasedGil released;
  const ExclusiveUse use(loaded->communicator->in_use());
  if (!use.ok()) ThrowIfError(use.Error("compile: the communicator"));
  static_cast<LoadedProgram&>(*loaded) =
      ValueOrThrow(CompileAndLoad(model.graph, model.values, backend, std::move(options), *loaded->communicator));
  if (loaded->options.check_numerics)
    loaded->numerics = std::make_unique<NumericsCheck>(*loaded, *loaded->communicator);
  if (loaded->options.verify_hardware > 0)
    loaded->hardware = ValueOrThrow(HardwareCheck::Create(*loaded, *loaded->communicator));
  return loaded;
}

// Compares the program of `num_ranks` ranks with that of one. Returns what the comparison takes for granted.
std::vector<std::string> VerifyModel(const Model& model, const std::string& backend_name, int64_t num_ranks,
                                     LoadOptions options, bool shrink) {
  ReleasedGil released;
  const std::unique_ptr<Backend> backend = ValueOrThrow(CreateBackend(backend_name));
  options.mesh = ValueOrThrow(MeshOfRanks(options, num_ranks));
  options.rank = 0;
  const verify::Assumptions assumptions = ValueOrThrow(Verify(model.graph, *backend, options, shrink));
  return {assumptions.begin(), assumptions.end()};
}

// Tells the other ranks whether this rank's arguments of compile() are valid: `error` is the error in them, or empty.
// Throws on all ranks if a rank has an error. Collective.
void AgreeOnArguments(Communicator& world, const std::string& error) {
  ReleasedGil released;
  const ExclusiveUse use(world.in_use());
  if (!use.ok()) ThrowIfError(use.Error("compile: the communicator"));
  const absl::Status own = error.empty() ? absl::OkStatus() : absl::InvalidArgumentError(error);
  ThrowIfError(AgreeOnSuccess(world, "arguments of compile", own));
}

// Calls `run` of lockstep/graph/_pass.py, which takes a lockstep.Graph and returns the changed one, or the text of an
// error. Returns true if it changed the graph.
absl::StatusOr<bool> RunPythonPass(const nb::object& run, Graph& graph) {
  const std::string before = graph.ToString();
  const HeldGil held;
  try {
    const nb::object made = run(Model{graph.Clone(), {}, nullptr, {}, {}});
    if (nb::isinstance<nb::str>(made)) return InvalidArgument() << nb::cast<std::string>(made);
    const Model& model = nb::cast<const Model&>(made);
    for (const auto& [state, value] : model.values)
      return InvalidArgument() << "it gives the state " << state
                               << " an initial value, but states that passes add start as zeros";
    graph = model.graph.Clone();
  } catch (const std::exception& error) {
    return Internal() << ToValidText(error.what());
  }
  return graph.ToString() != before;
}

// A pass of lockstep.pass_: its name, place, if it runs before that, version, if it changes the meaning, and `run`.
using PythonPass = std::tuple<std::string, std::string, bool, std::string, bool, nb::object>;

passes::ExtraPass ExtraPassOf(const PythonPass& given) {
  const auto& [name, place, before, version, changes_meaning, run] = given;
  // Passes are copied and destroyed without the GIL.
  const std::shared_ptr<const nb::object> function(new nb::object(run), [](const nb::object* object) {
    const HeldGil held;
    delete object;
  });
  passes::ExtraPass extra;
  extra.pass = {name, [function](Graph& graph) { return RunPythonPass(*function, graph); }};
  extra.pass.changes_meaning = changes_meaning;
  if (changes_meaning) extra.pass.keeps = passes::Keeps::kNothing;
  extra.place = place;
  extra.before = before;
  extra.version = version;
  return extra;
}

// Returns the rows of the table of options as dictionaries.
nb::list DescribeCompileOptions() {
  nb::list list;
  for (const CompileOption& option : CompileOptionTable()) {
    nb::dict described;
    described["name"] = option.name;
    described["type"] = option.type;
    described["default"] = option.default_value;
    described["doc"] = option.doc;
    described["choices"] = option.choices;
    described["is_of_strategy"] = option.is_of_strategy;
    list.append(described);
  }
  return list;
}

void BindOptions(nb::module_& module) {
  module.def("_compile_options", &DescribeCompileOptions,
             nb::sig("def _compile_options() -> list[dict[str, typing.Any]]"));
  module.def(
      "_named_texts",
      [](const std::string& text) {
        const absl::StatusOr<std::vector<NamedText>> texts = ParseNamedTexts(text);
        ThrowIfError(Annotate(texts.status(), "strategy"));
        return *texts;
      },
      "text"_a);
  module.def("_print_named_texts", &PrintNamedTexts, "texts"_a);
  module.def(
      "_strategy",
      [](const std::vector<NamedText>& texts) {
        const absl::StatusOr<Strategy> strategy = StrategyFrom(texts);
        ThrowIfError(Annotate(strategy.status(), "strategy"));
        return strategy->ToString();
      },
      "texts"_a);
  nb::class_<LoadOptions>(module, "_CompileOptions", "The options of compile (backends/compile_and_load.h).")
      .def(nb::init<>())
      .def(
          "set",
          [](LoadOptions& self, const std::vector<NamedText>& texts) {
            ThrowIfError(Annotate(SetOptions(CompileOptionTable(), texts, self), "compile"));
          },
          "texts"_a, "Sets options by their texts.")
      .def(
          "resolve",
          [](LoadOptions& self, const Model& graph, const std::string& backend, const Communicator& world) {
            ThrowIfError(Resolve(self, graph.graph, backend, world));
          },
          "graph"_a, "backend"_a, "world"_a,
          "Sets the options that depend on the ranks. Raises an Error for options that no rank can compile.")
      .def_prop_ro("mesh",
                   [](const LoadOptions& self) {
                     std::vector<std::pair<std::string, int64_t>> axes;
                     for (const MeshAxis& axis : self.mesh.axes()) axes.emplace_back(axis.name, axis.size);
                     return axes;
                   })
      .def_prop_ro("has_servers", [](const LoadOptions& self) { return self.servers.has_value(); })
      .def(
          "measured",
          [](LoadOptions& self, const std::optional<Measured>& given) {
            if (given) self.measured = MeasuredStepOf(*given);
            else self.measured.reset();
          },
          "measured"_a.none(), "Sets the measured times from which buckets are chosen; None clears them.",
          nb::sig("def measured(self, measured: tuple[collections.abc.Sequence[tuple[str, int, int, int]], "
                  "collections.abc.Mapping[str, collections.abc.Sequence[tuple[int, int]]]] | None) -> None"))
      .def(
          "passes",
          [](LoadOptions& self, const std::vector<PythonPass>& given) {
            self.passes.clear();
            for (const PythonPass& each : given) self.passes.push_back(ExtraPassOf(each));
          },
          "passes"_a, "Sets the passes that run among those of the pipeline.",
          nb::sig("def passes(self, passes: collections.abc.Sequence[tuple[str, str, bool, str, bool, "
                  "collections.abc.Callable[[Graph], Graph | str]]]) -> None"))
      .def(
          "client", [](LoadOptions& self, ServerClient* client) { self.client = client; }, "client"_a,
          "Sets the connection of this worker to the servers.");
}

}  // namespace

void BindCompile(nb::module_& module) {
  BindOptions(module);
  module.def("_slow_dtypes", &SlowDTypes, "model"_a, "backend"_a, "isa"_a,
             nb::sig("def _slow_dtypes(model: Graph, backend: str, isa: str) -> list[str]"));
  module.def("_agree_on_arguments", &AgreeOnArguments, "world"_a, "error"_a);
  module.def("_compile", &CompileModel, "graph"_a, "backend"_a, "world"_a, "options"_a, "dump"_a,
             nb::sig("def _compile(graph: Graph, backend: str, world: Communicator, options: _CompileOptions, "
                     "dump: str) -> Executable"));
  module.def(
      "_verify", &VerifyModel, "graph"_a, "backend"_a, "ranks"_a, "options"_a, "shrink"_a,
      nb::sig(
          "def _verify(graph: Graph, backend: str, ranks: int, options: _CompileOptions, shrink: bool) -> list[str]"));
}

}  // namespace lockstep::python
