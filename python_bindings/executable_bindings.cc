// lockstep.Executable, compile and save_onnx.

#include <nanobind/stl/map.h>
#include <nanobind/stl/optional.h>
#include <nanobind/stl/pair.h>
#include <nanobind/stl/string.h>
#include <nanobind/stl/unique_ptr.h>
#include <nanobind/stl/vector.h>

#include <algorithm>

#include "backends/compile.h"
#include "core/printer.h"
#include "frontends/onnx_exporter.h"
#include "passes/distribute/split_inputs.h"
#include "passes/dump.h"
#include "python_bindings/arrays.h"
#include "python_bindings/bindings.h"
#include "python_bindings/errors.h"
#include "runtime/agreement.h"
#include "runtime/device.h"
#include "runtime/exclusive_use.h"
#include "runtime/executor.h"

namespace lockstep::python {

namespace nb = nanobind;
using namespace nb::literals;

namespace {

// A loaded executable with what it runs on. The communicator belongs to Python, which `world` keeps alive.
struct LoadedExecutable {
  nb::object world;
  Communicator* communicator;
  std::unique_ptr<Device> device;
  std::unique_ptr<Executor> executor;
  std::shared_ptr<const OnnxOrigin> origin;
};

absl::Status CheckThreads(int64_t threads) {
  constexpr int64_t kMaxThreads = 1024;  // of a rank: more than hosts have cores
  if (threads >= 1 && threads <= kMaxThreads) return absl::OkStatus();
  return InvalidArgument() << "compile: threads is " << threads << ", expected at least 1 and at most " << kMaxThreads;
}

absl::Status CheckOptions(const CompileOptions& options, const ExecutorOptions& executor,
                          const Communicator& communicator) {
  if (options.bucket_bytes < 1)
    return InvalidArgument() << "compile: bucket_bytes is " << options.bucket_bytes << ", expected at least 1";
  if (executor.check_every < 0)
    return InvalidArgument() << "compile: check_every is " << executor.check_every << ", expected 0 (never) or more";
  if (!options.mesh.empty() && options.mesh.num_ranks() != communicator.size()) {
    return InvalidArgument() << "compile: the mesh " << options.mesh.ToString() << " is of " << options.mesh.num_ranks()
                             << " ranks, and the world has " << communicator.size();
  }
  return absl::OkStatus();
}

// Compiles and loads; a failure reaches the peers, which wait in Load for this rank.
absl::Status CompileAndLoad(LoadedExecutable& loaded, const Model& model, const std::string& backend_name,
                            CompileOptions options, const passes::InputSplits& splits, const ExecutorOptions& executor,
                            const std::string& dump) {
  RETURN_IF_ERROR(CheckOptions(options, executor, *loaded.communicator));
  ASSIGN_OR_RETURN(const std::unique_ptr<Backend> backend, CreateBackend(backend_name));
  ASSIGN_OR_RETURN(loaded.device, backend->MakeDevice());
  if (!dump.empty()) {
    const bool alone = loaded.communicator->size() == 1;
    const std::string rank = alone ? "" : ".rank" + std::to_string(loaded.communicator->rank());
    ASSIGN_OR_RETURN(options.debug, passes::DumpTo(dump, model.graph.name() + rank));
  }
  Graph graph = model.graph.Clone();
  RETURN_IF_ERROR(passes::SplitInputs(graph, splits, options.mesh));
  ASSIGN_OR_RETURN(Executable executable, Compile(std::move(graph), *backend, options));
  ASSIGN_OR_RETURN(loaded.executor,
                   Executor::Load(std::move(executable), loaded.communicator, loaded.device.get(), executor));
  for (const ValueInfo& state : loaded.executor->executable().states) {
    const auto value = model.values.find(state.name);
    if (value == model.values.end()) continue;
    RETURN_IF_ERROR(loaded.executor->AssignState(state.name, {value->second.type(), value->second.bytes()}));
  }
  return CheckReplicas(*loaded.executor, *loaded.communicator);
}

std::unique_ptr<LoadedExecutable> CompileModel(const Model& model, const std::string& backend, nb::object world,
                                               const std::vector<std::pair<std::string, int64_t>>& mesh,
                                               const passes::InputSplits& splits, int64_t threads,
                                               std::optional<int64_t> bucket_bytes, bool optimize, bool replicated,
                                               int64_t check_every, const std::string& isa, const std::string& dump) {
  auto loaded = std::make_unique<LoadedExecutable>();
  loaded->communicator = nb::cast<Communicator*>(world);
  loaded->world = std::move(world);
  loaded->origin = model.origin;
  CompileOptions options;
  if (bucket_bytes) options.bucket_bytes = *bucket_bytes;
  options.optimize = optimize;
  options.replicated = replicated;
  options.isa = isa;
  ExecutorOptions executor;
  executor.check_every = check_every;
  nb::gil_scoped_release release;
  const ExclusiveUse use(loaded->communicator->in_use());
  if (!use.ok()) ThrowIfError(use.Error("compile: the communicator"));
  absl::StatusOr<Mesh> of_ranks = MeshOf(mesh);
  absl::Status status = of_ranks.status();
  if (status.ok()) status = CheckThreads(threads);
  if (status.ok()) {
    options.threads = static_cast<int>(threads);
    options.mesh = *std::move(of_ranks);
    status = CompileAndLoad(*loaded, model, backend, options, splits, executor, dump);
  }
  if (!status.ok()) loaded->communicator->Abort(status);
  ThrowIfError(status);
  return loaded;
}

nb::dict Call(LoadedExecutable& self, const nb::args& args, const nb::kwargs& kwargs) {
  if (args.size() > 0) {
    ErrorStream error = InvalidArgument()
                        << "@" << self.executor->executable().name << " is called with inputs by name, such as exe(";
    const std::vector<ValueInfo>& inputs = self.executor->executable().inputs;
    for (size_t i = 0; i < inputs.size(); ++i) error << (i ? ", " : "") << inputs[i].name << "=…";
    ThrowIfError(error << "), not with " << args.size() << " without");
  }
  std::vector<std::string> names;
  std::vector<InputArray> arrays;
  for (const auto& [name, value] : kwargs) {
    names.push_back(TextOf(name, "the name of an input"));
    arrays.push_back(CastToArray(value, "input " + names.back()));
  }
  std::vector<NamedInput> inputs;
  for (size_t i = 0; i < names.size(); ++i) inputs.push_back({names[i], BorrowArray(arrays[i], "input " + names[i])});
  const std::vector<ValueInfo>& infos = self.executor->executable().results;
  std::vector<OutputArray> outputs;
  std::vector<NamedResult> results;
  for (const ValueInfo& info : infos) {
    outputs.emplace_back(info.local_type);
    results.push_back({info.name, outputs.back().ref()});
  }
  absl::Status status;
  {
    nb::gil_scoped_release release;
    status = self.executor->Run(inputs, results);
  }
  ThrowIfError(status);
  nb::dict dict;
  for (size_t i = 0; i < infos.size(); ++i) dict[nb::str(infos[i].name.c_str())] = outputs[i].Release();
  return dict;
}

// State has checked that there is one of this name.
nb::object ReadState(LoadedExecutable& self, const std::string& name) {
  const std::vector<ValueInfo>& states = self.executor->executable().states;
  const auto state =
      std::find_if(states.begin(), states.end(), [&](const ValueInfo& info) { return info.name == name; });
  if (state == states.end()) ThrowIfError(NotFound() << "there is no state " << name);
  OutputArray array(state->local_type);
  ThrowIfError(self.executor->ReadState(name, array.ref()));
  return array.Release();
}

void SaveOnnx(LoadedExecutable& self, const std::string& path) {
  if (!self.origin)
    ThrowIfError(FailedPrecondition() << "save_onnx: the executable was not made of an imported ONNX model");
  ThrowIfError(Annotate(self.executor->CheckUsable(), "save_onnx"));
  std::map<std::string, Tensor> values;
  for (const ValueInfo& state : self.executor->executable().states) {
    if (state.local_type != state.global_type)
      ThrowIfError(Unimplemented() << "save_onnx: state " << state.name << " is split over the ranks");
    Tensor value(state.local_type);
    ThrowIfError(self.executor->ReadState(state.name, {state.local_type, value.mutable_bytes()}));
    values.emplace(state.name, std::move(value));
  }
  nb::gil_scoped_release release;
  ThrowIfError(ExportOnnx(*self.origin, values, path));
}

nb::list CollectiveLines(const LoadedExecutable& self) {
  nb::list lines;
  for (const std::string& line : self.executor->executable().certificate.lines) lines.append(ToValidText(line));
  return lines;
}

nb::dict Counters(const LoadedExecutable& self) {
  const ExecutorCounters& counters = self.executor->counters();
  nb::dict dict;
  dict["runs"] = counters.runs;
  dict["total"] = counters.total;
  dict["kernels"] = counters.kernels;
  dict["communication"] = counters.communication;
  return dict;
}

nb::list Profile(const LoadedExecutable& self) {
  nb::list steps;
  for (const StepProfile& step : self.executor->profile())
    steps.append(nb::make_tuple(ToValidText(step.step->ToString()), step.seconds));
  return steps;
}

using Class = nb::class_<LoadedExecutable>;

void BindCalls(Class& executable) {
  executable.def("__call__", &Call, nb::sig("def __call__(self, **inputs: typing.Any) -> dict[str, numpy.ndarray]"))
      .def_prop_ro(
          "state", [](nb::object self) { return nb::module_::import_("lockstep._values").attr("State")(self); },
          "The state on this rank by name: read it, assign it.", nb::sig("def state(self) -> lockstep._values.State"))
      .def("_read_state", &ReadState, "name"_a, nb::sig("def _read_state(self, name: str) -> numpy.ndarray"))
      .def(
          "_assign_state",
          [](LoadedExecutable& self, const std::string& name, nb::object value) {
            const InputArray array = CastToArray(value, "state " + name);
            ThrowIfError(self.executor->AssignState(name, BorrowArray(array, "state " + name)));
          },
          "name"_a, "value"_a.none())
      .def("_state_names",
           [](const LoadedExecutable& self) {
             std::vector<std::string> names;
             for (const ValueInfo& state : self.executor->executable().states) names.push_back(state.name);
             return names;
           })
      .def(
          "_world", [](const LoadedExecutable& self) { return self.world; },
          nb::sig("def _world(self) -> Communicator"))
      .def(
          "check_replicas",
          [](LoadedExecutable& self) {
            nb::gil_scoped_release release;
            const ExclusiveUse use(self.communicator->in_use());
            if (!use.ok()) ThrowIfError(use.Error("check_replicas: the communicator"));
            ThrowIfError(CheckReplicas(*self.executor, *self.communicator));
          },
          "Raises an Error that names the first state whose bits differ between ranks, if there is one. All ranks call "
          "it.")
      .def("_save_onnx", &SaveOnnx, "path"_a);
}

void BindViews(Class& executable) {
  executable
      .def_prop_ro(
          "graph",
          [](const LoadedExecutable& self) {
            return Model{ValueOrThrow(ParseGraph(self.executor->executable().graph_text)), {}, self.origin, {}, {}};
          },
          "The program of a rank, after all passes.")
      .def_prop_ro(
          "steps", [](const LoadedExecutable& self) { return ToValidText(self.executor->executable().ToString()); },
          "The steps that a call runs, as text.")
      .def(
          "summary",
          [](nb::object self, nb::object depth) {
            return nb::module_::import_("lockstep._layers").attr("executable_summary")(self, depth);
          },
          "depth"_a = nb::none(),
          "How many steps of which kind a call runs, and graph.summary(). A reference step is an op for which the "
          "backend has no kernel:\n"
          "it is slow.",
          nb::sig("def summary(self, depth: int | None = None) -> str"))
      .def_prop_ro("collectives", &CollectiveLines,
                   "A line for each collective of a call, in order: what ranks compare when they load.",
                   nb::sig("def collectives(self) -> list[str]"))
      .def_prop_ro(
          "threads", [](const LoadedExecutable& self) { return self.executor->executable().threads; },
          "Threads of this rank.")
      .def_prop_ro("counters", &Counters,
                   "Seconds since loading, in calls that succeeded: total, in kernels, in communication; and their "
                   "number, runs.",
                   nb::sig("def counters(self) -> dict[str, float]"))
      .def_prop_ro("profile", &Profile,
                   "The steps of a call in order, each with its seconds since loading, in calls that succeeded.",
                   nb::sig("def profile(self) -> list[tuple[str, float]]"))
      .def("__repr__", [](const LoadedExecutable& self) {
        const Executable& executable = self.executor->executable();
        return "<lockstep.Executable @" + executable.name + ", " + executable.backend + ", " +
               std::to_string(executable.steps.size()) + " steps>";
      });
}

}  // namespace

void BindExecutable(nb::module_& module) {
  Class executable(module, "Executable",
                   "A compiled program on this rank, with its state. Called with the inputs by name, it "
                   "returns the results by name.\n"
                   "All ranks call it together. Arrays are this rank's share, and are read without copies "
                   "if they are in row-major order.\n\n"
                   "A call that fails before the first step which writes a state, such as for an input of "
                   "another shape, changes nothing. One that fails later may have updated some states and "
                   "not others: every call then raises an Error with the cause, until all states that the "
                   "program updates have been assigned again.");
  BindCalls(executable);
  BindViews(executable);
  module.def("_compile", &CompileModel, "graph"_a, "backend"_a, "world"_a, "mesh"_a, "split"_a, "threads"_a,
             "bucket_bytes"_a, "optimize"_a, "replicated"_a, "check_every"_a, "isa"_a, "dump"_a,
             nb::sig("def _compile(graph: Graph, backend: str, world: Communicator, mesh: "
                     "collections.abc.Sequence[tuple[str, int]], "
                     "split: collections.abc.Mapping[str, collections.abc.Mapping[str, int]], threads: int, "
                     "bucket_bytes: int | None, optimize: bool, replicated: bool, check_every: int, "
                     "isa: str, dump: str) -> Executable"));
}

}  // namespace lockstep::python
