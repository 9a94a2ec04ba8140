// lockstep.compile: its options on their way from Python.

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

#include "core/op_def.h"
#include "python_bindings/bindings.h"
#include "python_bindings/compile_model.h"
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

// The dtypes of 16 bits in which the model has products that are computed in f32 on this machine.
std::vector<std::string> SlowDTypes(const Model& model, const std::string& backend, const std::string& isa) {
  const std::unique_ptr<Backend> machine = ValueOrThrow(CreateBackend(backend));
  TargetOptions options;
  options.isa = isa;
  const Target target = ValueOrThrow(machine->MakeTarget(options));
  std::set<std::string> slow;
  if (target.prefers_f32) AddSlowDTypes(model.graph, target.prefers_f32, slow);
  return {slow.begin(), slow.end()};
}

// What buckets are chosen by: of each gradient its name, and when it was ready, needed, and how long its update took;
// of each axis what bytes take. Nanoseconds.
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
                                               const GivenOptions& options, const std::string& dump) {
  auto loaded = std::make_unique<LoadedExecutable>();
  loaded->communicator = nb::cast<Communicator*>(world);
  loaded->world = std::move(world);
  loaded->origin = model.origin;
  loaded->batches = BatchesOf(model.graph);
  ReleasedGil released;
  const ExclusiveUse use(loaded->communicator->in_use());
  if (!use.ok()) ThrowIfError(use.Error("compile: the communicator"));
  ThrowIfError(CompileAndLoad(*loaded, model, backend, options, dump));
  return loaded;
}

// What compile() of Python does with the verdict on its arguments, of which none is wrong if `error` is empty.
void AgreeOnArguments(Communicator& world, const std::string& error) {
  ReleasedGil released;
  const ExclusiveUse use(world.in_use());
  if (!use.ok()) ThrowIfError(use.Error("compile: the communicator"));
  const absl::Status own = error.empty() ? absl::OkStatus() : absl::InvalidArgumentError(error);
  ThrowIfError(AgreeOnSuccess(world, "arguments of compile", own));
}

void BindOptions(nb::module_& module) {
  nb::class_<GivenOptions>(module, "_CompileOptions", "The options of compile (backends/compile_options.h).")
      .def(nb::init<>())
      .def_rw("mesh", &GivenOptions::axes)
      .def_rw("placements", &GivenOptions::placements)
      .def_rw("shard_optimizer", &GivenOptions::shard_optimizer)
      .def_rw("shared_weights", &GivenOptions::shared_weights)
      .def_rw("wire", &GivenOptions::wire)
      .def_rw("bucket_bytes", &GivenOptions::bucket_bytes, nb::for_setter(nb::arg().none()))
      .def_rw("replicated", &GivenOptions::replicated)
      .def_rw("optimize", &GivenOptions::optimize)
      .def_rw("tf32", &GivenOptions::tf32)
      .def_rw("threads", &GivenOptions::threads_of_rank)
      .def_rw("isa", &GivenOptions::isa)
      .def_rw("tune", &GivenOptions::tune)
      .def_rw("memory_limit", &GivenOptions::memory_limit)
      .def(
          "factors",
          [](GivenOptions& self, double operations) {
            self.leaves_factors = false;
            if (operations > 0) self.factors = operations;
          },
          "operations"_a, "Operations for a byte, 0 for none; without a call the hosts decide.")
      .def(
          "buckets", [](GivenOptions& self) { self.measured.emplace(); }, "Buckets go by a report.")
      .def(
          "measured",
          [](GivenOptions& self, const std::optional<Measured>& given) {
            if (given) self.measured = MeasuredStepOf(*given);
            else self.measured.reset();
          },
          "measured"_a.none(), "The report, with what collectives take; None where it says nothing of these ranks.",
          nb::sig("def measured(self, measured: tuple[collections.abc.Sequence[tuple[str, int, int, int]], "
                  "collections.abc.Mapping[str, collections.abc.Sequence[tuple[int, int]]]] | None) -> None"))
      .def(
          "servers",
          [](GivenOptions& self, bool synchronous, int64_t max_staleness, int64_t bigarray_bound) {
            self.servers = {
                .synchronous = synchronous, .max_staleness = max_staleness, .bigarray_bound = bigarray_bound};
          },
          "synchronous"_a, "max_staleness"_a, "bigarray_bound"_a, "Parameter servers update what is trained.")
      .def(
          "client", [](GivenOptions& self, ServerClient* client) { self.executor.servers = client; }, "client"_a,
          "This worker's end of the servers.")
      .def(
          "run",
          [](GivenOptions& self, int64_t check_every, bool profile) {
            self.executor.check_every = check_every;
            self.executor.profile = profile;
          },
          "check_every"_a, "profile"_a, "How calls run.")
      .def(
          "resolve",
          [](GivenOptions& self, const Model& graph, const std::string& backend, const Communicator& world) {
            ThrowIfError(Resolve(self, graph.graph, backend, world));
          },
          "graph"_a, "backend"_a, "world"_a, "Fills in what depends on the ranks, and refuses what does not go.");
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
}

}  // namespace lockstep::python
