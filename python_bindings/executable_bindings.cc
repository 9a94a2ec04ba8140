// lockstep.Executable: compile, calls and views. Its states are in state_bindings.cc.

#include <nanobind/stl/map.h>
#include <nanobind/stl/optional.h>
#include <nanobind/stl/pair.h>
#include <nanobind/stl/string.h>
#include <nanobind/stl/tuple.h>
#include <nanobind/stl/unique_ptr.h>
#include <nanobind/stl/vector.h>

#include <algorithm>
#include <memory>
#include <span>
#include <string>
#include <tuple>
#include <utility>

#include "core/printer.h"
#include "python_bindings/arrays.h"
#include "python_bindings/bindings.h"
#include "python_bindings/bound_arrays.h"
#include "python_bindings/errors.h"
#include "python_bindings/loaded_executable.h"
#include "python_bindings/padded_rows.h"
#include "python_bindings/released_gil.h"
#include "runtime/device.h"
#include "runtime/exclusive_use.h"
#include "runtime/execution/executor.h"

namespace lockstep::python {

namespace nb = nanobind;
using namespace nb::literals;

namespace {

// What the schedule of a setting gives; a note on what it raises says which it is.
nb::object ValueOf(nb::handle schedule, const std::string& setting, int64_t step) {
  try {
    return schedule(step);
  } catch (nb::python_error& error) {
    error.value().attr("add_note")("in the schedule of setting " + setting + ", at step " + std::to_string(step));
    throw;
  }
}

// Before a call: settings that have a schedule get the value of this step.
void FollowSchedules(LoadedExecutable& self) {
  for (const auto& [setting, schedule] : self.schedules) {
    const std::string name = TextOf(setting, "the name of a setting");
    const nb::object value = ValueOf(schedule, name, self.step);
    double number = 0;
    if (!nb::try_cast(value, number)) {
      ThrowIfError(InvalidArgument() << "the schedule of setting " << name << " gives "
                                     << nb::cast<std::string>(nb::repr(value)) << " at step " << self.step
                                     << ", expected a number");
    }
    ThrowIfError(Annotate(self.executor->Set(name, number), "the schedule at step " + std::to_string(self.step)));
  }
}

// A call that was started.
struct Started {
  nb::object owner;  // keeps `executable` alive
  LoadedExecutable& executable;
  int64_t call;
  std::shared_ptr<Outputs> outputs;  // null: they are in `results`
  nb::dict results;
};

nb::dict Release(const LoadedExecutable& self, Outputs& outputs) {
  const std::vector<ValueInfo>& infos = self.executor->executable().results;
  nb::dict dict;
  for (size_t i = 0; i < infos.size(); ++i) dict[nb::str(infos[i].name.c_str())] = outputs[i].Release();
  return dict;
}

// What a call is made with: `inputs` borrows from the others.
struct Arguments {
  std::vector<std::string> names;
  std::vector<InputArray> arrays;
  std::vector<Tensor> padded;
  std::vector<NamedInput> inputs;
};

// Throws if labels have a shape of which lockstep/_graph/mistakes.py knows what was meant by it.
void CheckLabels(const LoadedExecutable& self, std::span<const NamedInput> inputs) {
  for (const NamedInput& input : inputs) {
    const TensorType& type = input.tensor.type;
    const nb::object wrong = self.wrong_labels.get(nb::str(input.name.data(), input.name.size()), nb::none());
    if (wrong.is_none() || type.shape.rank() == 0) continue;
    const auto [shape, advice] = nb::cast<std::pair<std::vector<int64_t>, std::string>>(wrong);
    if (std::equal(type.shape.dims().begin() + 1, type.shape.dims().end(), shape.begin(), shape.end()))
      ThrowIfError(InvalidArgument() << "input " << input.name << " is " << type << "; " << advice);
  }
}

Arguments ArgumentsOf(LoadedExecutable& self, const nb::args& args, const nb::kwargs& kwargs) {
  if (args.size() > 0) {
    ErrorStream error = InvalidArgument()
                        << "@" << self.executor->executable().name << " is called with inputs by name, such as exe(";
    const std::vector<ValueInfo>& inputs = self.executor->executable().inputs;
    for (size_t i = 0; i < inputs.size(); ++i) error << (i ? ", " : "") << inputs[i].name << "=…";
    ThrowIfError(error << "), not with " << args.size() << " without");
  }
  Arguments arguments;
  auto& [names, arrays, padded, inputs] = arguments;
  const std::vector<ValueInfo>& infos = self.executor->executable().inputs;
  for (const auto& [name, value] : kwargs) {
    names.push_back(TextOf(name, "the name of an input"));
    const auto info =
        std::find_if(infos.begin(), infos.end(), [&](const ValueInfo& i) { return i.name == names.back(); });
    arrays.push_back(CastToArray(value, "input " + names.back(), info == infos.end() ? nullptr : &info->local_type));
  }
  for (size_t i = 0; i < names.size(); ++i) inputs.push_back({names[i], BorrowArray(arrays[i], "input " + names[i])});
  CheckLabels(self, inputs);
  ThrowIfError(PadRows(self.executor->executable(), self.batches, self.first_rows, inputs, padded));
  CheckBoundResults(self, inputs);
  return arguments;
}

// What happens on a rank before its call begins: peers that wait for it are told of an error at once.
Arguments Prepare(LoadedExecutable& self, const nb::args& args, const nb::kwargs& kwargs) {
  const auto tell = [&](const std::string& what) {
    // Nobody waits in its calls for a worker whose program is its own.
    if (self.communicator->size() > 1 && self.alone == nullptr) self.communicator->Abort(InvalidArgument() << what);
  };
  try {
    FollowSchedules(self);
    return ArgumentsOf(self, args, kwargs);
  } catch (nb::python_error& error) {
    tell(nb::cast<std::string>(nb::str(error.type().attr("__name__"))) + ": " +
         nb::cast<std::string>(nb::str(error.value())));
    throw;
  } catch (const std::exception& error) {
    tell(error.what());
    throw;
  }
}

using Run = std::function<absl::Status(std::span<const NamedInput>, std::span<const NamedResult>)>;

// Calls `run`, without the GIL, with the arguments of Python and with memory for all results, which it returns.
std::shared_ptr<Outputs> RunWith(LoadedExecutable& self, const nb::args& args, const nb::kwargs& kwargs,
                                 const Run& run) {
  const Arguments arguments = Prepare(self, args, kwargs);
  auto outputs = std::make_shared<Outputs>();
  std::vector<NamedResult> results;
  for (const ValueInfo& info : self.executor->executable().results) {
    const auto bound = self.bound_results.find(info.name);
    if (bound == self.bound_results.end()) outputs->emplace_back(info.local_type);
    else outputs->emplace_back(bound->second);
    results.push_back({info.name, outputs->back().ref()});
  }
  absl::Status status;
  {
    ReleasedGil released;
    status = run(arguments.inputs, results);
  }
  ThrowIfError(status);
  return outputs;
}

nb::dict Call(LoadedExecutable& self, const nb::args& args, const nb::kwargs& kwargs) {
  const auto run = [&](auto inputs, auto results) { return self.executor->Run(inputs, results); };
  const std::shared_ptr<Outputs> outputs = RunWith(self, args, kwargs, run);
  ++self.step;
  return Release(self, *outputs);
}

nb::object Start(nb::object self, const nb::args& args, const nb::kwargs& kwargs) {
  auto& loaded = nb::cast<LoadedExecutable&>(self);
  int64_t call = 0;
  const auto start = [&](auto inputs, auto results) -> absl::Status {
    ASSIGN_OR_RETURN(call, loaded.executor->Start(inputs, results));
    return absl::OkStatus();
  };
  std::shared_ptr<Outputs> outputs = RunWith(loaded, args, kwargs, start);
  ++loaded.step;
  while (!loaded.under_way.empty() && !loaded.executor->IsUnderWay(loaded.under_way.front().first)) {
    loaded.under_way.pop_front();
  }
  if (loaded.executor->IsUnderWay(call)) loaded.under_way.emplace_back(call, outputs);
  nb::list names;
  for (const ValueInfo& info : loaded.executor->executable().results) names.append(nb::str(info.name.c_str()));
  nb::object started = nb::cast(std::make_unique<Started>(Started{self, loaded, call, std::move(outputs), {}}));
  return nb::module_::import_("lockstep._base.values").attr("StartedCall")(started, nb::tuple(names));
}

nb::dict WaitFor(Started& self) {
  absl::Status status;
  {
    ReleasedGil released;
    status = self.executable.executor->Wait(self.call);
  }
  ThrowIfError(status);
  if (self.outputs != nullptr) self.results = Release(self.executable, *std::exchange(self.outputs, nullptr));
  return self.results;
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

nb::dict Memory(const LoadedExecutable& self) {
  const Executable& executable = self.executor->executable();
  nb::dict bytes;
  for (const auto& [name, kind] :
       {std::pair("arena", BufferKind::kArena), std::pair("states", BufferKind::kState),
        std::pair("constants", BufferKind::kConstant), std::pair("buckets", BufferKind::kRegistered)})
    bytes[name] = executable.BytesOf(kind) + (kind == BufferKind::kConstant ? executable.kernels_constant_bytes : 0);
  return bytes;
}

nb::dict Recomputed(const LoadedExecutable& self) {
  const Recomputation& work = self.executor->executable().recomputed;
  const auto share = [](double part, double whole) { return whole > 0 ? part / whole : 0.0; };
  nb::dict recomputed;
  recomputed["kernels"] = work.kernels;
  recomputed["operations"] = share(work.flops, work.all_flops);
  recomputed["bytes"] = share(work.bytes, work.all_bytes);
  return recomputed;
}

nb::list Profile(const LoadedExecutable& self) {
  nb::list steps;
  for (const StepProfile& step : self.executor->profile())
    steps.append(nb::make_tuple(ToValidText(step.step->ToString()), step.seconds));
  return steps;
}

constexpr char kEvaluate[] =
    R"(Calls a program of `lockstep.evaluation` with each of this rank's batches, and returns the loss and the metrics of all samples of
all ranks, as if they had been one batch. All ranks call it.

Ranks may have different numbers of batches, or none, and a batch fewer rows than a rank's share. With uneven=False batches are full,
and equally many on each rank.

Args:
  batches: the inputs of each call: by name, or as a tuple in order, the model's, the loss's, and perhaps `rows`.

Returns:
  `loss` and each metric, NaN where nothing counts; and, but for uneven=False, `rows`, how many there were.

Raises:
  Error: of a batch with other inputs, of which the other ranks hear; or if the program is no evaluation.

Example:
  >>> evaluation.evaluate(lockstep.data.batches(images, labels, size=1000, world=world, last="pad"))
  {'loss': 0.2952, 'accuracy': 0.8931, 'rows': 10000})";

void BindExecutableCalls(ExecutableClass& executable) {
  executable.def("__call__", &Call, nb::sig("def __call__(self, **inputs: typing.Any) -> dict[str, numpy.ndarray]"))
      .def("start", &Start,
           "Begins a call, and returns its results by name: whoever looks at one waits for it. So on a GPU the next "
           "call's inputs are\n"
           "copied while this one computes. Inputs may be changed as soon as it returns.\n\n"
           "Two calls are under way at most: a third waits for the first. What a call meets is raised by what is "
           "returned here, and\n"
           "by the next use of the executable if that comes first, which then names the calls that it may have been. "
           "On a CPU the call\n"
           "has ended when this returns.",
           nb::sig("def start(self, **inputs: typing.Any) -> lockstep._base.values.StartedCall"))
      .def(
          "joined",
          [](nb::object self, nb::handle batches) {
            const nb::module_ module = nb::module_::import_("lockstep._compile.joined");
            module.attr("check")(self);
            return module.attr("joined")(self, batches);
          },
          "batches"_a.none(),
          "Calls with each of this rank's batches, and without rows when they have run out, until all ranks' have; "
          "gives "
          "the results of\n"
          "each call. Of a step that `train_step(..., uneven=True)` made. Ranks may have different numbers of batches, "
          "and nobody counts\n"
          "them before. A call in which no rank has a row changes nothing, is no step, and has no result here.\n\n"
          "Args:\n"
          "  batches: the inputs of each call, by name.\n\n"
          "Example:\n"
          "  >>> for result in exe.joined({\"image\": image, \"label\": label} for image, label in shard):\n"
          "  ...     print(result[\"loss\"], result[\"rows\"])",
          nb::sig("def joined(self, batches: collections.abc.Iterable[collections.abc.Mapping[str, typing.Any]]) -> "
                  "collections.abc.Iterator[dict[str, numpy.ndarray]]"))
      .def(
          "evaluate",
          [](nb::object self, nb::handle batches) {
            return nb::module_::import_("lockstep._graph.evaluation").attr("evaluate")(self, batches);
          },
          "batches"_a.none(), kEvaluate,
          nb::sig("def evaluate(self, batches: collections.abc.Iterable[collections.abc.Mapping[str, typing.Any] | "
                  "collections.abc.Sequence[typing.Any]]) -> dict[str, float]"))
      .def(
          "_world", [](const LoadedExecutable& self) { return self.world; },
          nb::sig("def _world(self) -> Communicator"));
}

void BindViews(ExecutableClass& executable) {
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
            return nb::module_::import_("lockstep._graph.layers").attr("executable_summary")(self, depth);
          },
          "depth"_a = nb::none(),
          "How many steps of which kind a call runs, and graph.summary(). A reference step is an op for which the "
          "backend has no kernel:\n"
          "it is slow.",
          nb::sig("def summary(self, depth: int | None = None) -> str"))
      .def_prop_ro("collectives", &CollectiveLines,
                   "A line for each collective of a call, in order: what ranks compare when they load.",
                   nb::sig("def collectives(self) -> list[str]"))
      .def_prop_ro("memory", &Memory,
                   "The bytes that this rank holds between and during calls: states, constants, the arena, in which "
                   "everything else lies that\n"
                   "a call computes, and the buckets of collectives. Inputs and results are the caller's.",
                   nb::sig("def memory(self) -> dict[str, int]"))
      .def_prop_ro("recomputed", &Recomputed,
                   "What a call computes again because of `memory_limit`: how many `kernels` run again, and the "
                   "`operations` and the\n"
                   "`bytes` read and written of those, each as a share of what the call computes without.",
                   nb::sig("def recomputed(self) -> dict[str, float]"))
      .def_prop_ro("_is_asynchronous",
                   [](const LoadedExecutable& self) {
                     const std::vector<ServedState>& served = self.executor->executable().served;
                     return !served.empty() && !served.front().synchronous;
                   })
      .def("_staleness",
           [](const LoadedExecutable& self) {
             ReleasedGil released;
             return ValueOrThrow(self.executor->Staleness());
           })
      .def(
          "staleness",
          [](nb::object self) { return nb::module_::import_("lockstep._compile.strategy").attr("staleness_of")(self); },
          "How late gradients were, of a program compiled with strategy=\"parameter_server\": the updates by other "
          "workers between\n"
          "the pull that a gradient was made from and its push. It counts the updates of the whole job.",
          nb::sig("def staleness(self) -> lockstep.kv.Staleness"))
      .def_prop_ro(
          "threads", [](const LoadedExecutable& self) { return self.executor->executable().threads; },
          "Threads of this rank.")
      .def_prop_ro("counters", &Counters,
                   "Seconds of this thread since loading, in calls that were waited for and succeeded: total, in "
                   "kernels, in communication;\n"
                   "and their number, runs. On a GPU kernels and communication are the time that it takes to queue "
                   "them, but with\n"
                   "compile(profile=True).",
                   nb::sig("def counters(self) -> dict[str, float]"))
      .def_prop_ro("profile", &Profile,
                   "The steps of a call in order, each with its seconds since loading, in calls that succeeded. On a "
                   "GPU they are known\n"
                   "with compile(profile=True) alone.",
                   nb::sig("def profile(self) -> list[tuple[str, float]]"))
      .def("__repr__", [](const LoadedExecutable& self) {
        const Executable& executable = self.executor->executable();
        std::vector<std::string> inputs, results;
        for (const ValueInfo& info : executable.inputs) inputs.push_back(info.name + ": " + info.local_type.ToString());
        for (const ValueInfo& info : executable.results) results.push_back(info.name);
        return "<lockstep.Executable " + Signature(executable.name, inputs, results) + ", " +
               std::to_string(executable.states.size()) + " states, " + std::to_string(executable.steps.size()) +
               " steps, " + executable.backend + ", rank " + std::to_string(self.communicator->rank()) + " of " +
               std::to_string(self.communicator->size()) + ">";
      });
}

}  // namespace

void BindExecutable(nb::module_& module) {
  ExecutableClass executable(
      module, "Executable",
      "A compiled program on this rank, with its state. Called with the inputs by name, it "
      "returns the results by name.\n"
      "All ranks call it together. Arrays are this rank's share, and are read without copies "
      "if they are in row-major order.\n\n"
      "A call that fails before the first step which writes a state, such as for an input of "
      "another shape, changes nothing. One that fails later may have updated some states and "
      "not others: every call then raises an Error with the cause, until all states that the "
      "program updates have been assigned again. So it is on one rank. Of several ranks a call "
      "that fails on one, whatever for, fails on all, and ends their communicator: start the job "
      "anew, from a checkpoint.");
  nb::class_<Started>(module, "_Started", "A call that was started.")
      .def("wait", &WaitFor, nb::sig("def wait(self) -> dict[str, numpy.ndarray]"));
  BindExecutableCalls(executable);
  BindBinding(executable);
  BindStates(executable);
  BindSettings(executable);
  BindViews(executable);
  BindRecord(module, executable);
}

}  // namespace lockstep::python
