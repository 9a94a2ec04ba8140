// lockstep.Executable: calls. Its states are in state_bindings.cc, and views of it in view_bindings.cc.

#include <nanobind/stl/optional.h>
#include <nanobind/stl/pair.h>
#include <nanobind/stl/string.h>
#include <nanobind/stl/unique_ptr.h>
#include <nanobind/stl/vector.h>

#include <algorithm>
#include <cmath>
#include <exception>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <utility>

#include "backends/find_non_finite.h"
#include "passes/training/uneven.h"
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

// Returns the value of a setting's schedule. Adds a note with the setting to an exception.
nb::object ValueOf(nb::handle schedule, const std::string& setting, int64_t step) {
  try {
    return schedule(step);
  } catch (nb::python_error& error) {
    error.value().attr("add_note")("in the schedule of setting " + setting + ", at step " + std::to_string(step));
    throw;
  }
}

// Before a call, sets the settings that follow a schedule to their values at this step.
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

// A call in progress.
struct Started {
  nb::object owner;  // keeps `executable` alive
  LoadedExecutable& executable;
  int64_t call;
  int64_t step;                      // the value of `step` before the call
  std::shared_ptr<Outputs> outputs;  // null if they have been moved to `results`
  nb::dict results;
};

// Returns the value of a result that is one float or integer; 1 if there is no such result.
double ScalarOf(const std::vector<ValueInfo>& infos, Outputs& outputs, std::string_view name) {
  for (size_t i = 0; i < infos.size(); ++i) {
    const TensorRef result = outputs[i].ref();
    if (infos[i].name != name || result.type.num_elements() != 1) continue;
    return DispatchDType(result.type.dtype, [&](auto tag) {
      return static_cast<double>(*static_cast<const typename decltype(tag)::type*>(result.data));
    });
  }
  return 1;
}

// Logs a warning, once for an executable, if the loss of a training step is not finite. The loss is in host memory, so
// this costs nothing. Without rows there is no loss.
void WarnOfLoss(LoadedExecutable& self, Outputs& outputs, int64_t step) {
  const std::vector<ValueInfo>& infos = self.executor->executable().results;
  if (self.warned_of_loss || self.communicator->rank() != 0 || self.executor->updated_states().empty()) return;
  const double loss = ScalarOf(infos, outputs, "loss");
  if (std::isfinite(loss) || (self.is_uneven && ScalarOf(infos, outputs, passes::kRows) == 0)) return;
  self.warned_of_loss = true;
  nb::module_::import_("lockstep._compile.numerics").attr("warn_of_loss")(self.executor->executable().name, step, loss);
}

nb::dict Release(LoadedExecutable& self, Outputs& outputs, int64_t step) {
  const std::vector<ValueInfo>& infos = self.executor->executable().results;
  WarnOfLoss(self, outputs, step);
  nb::dict dict;
  for (size_t i = 0; i < infos.size(); ++i) dict[nb::str(infos[i].name.c_str())] = outputs[i].Release();
  return dict;
}

// The arguments of a call. `inputs` borrows from the other members.
struct Arguments {
  std::vector<std::string> names;
  std::vector<InputArray> arrays;
  std::vector<Tensor> padded;
  std::vector<NamedInput> inputs;
};

// Throws, with advice, if labels have a shape that lockstep/_compile/mistakes.py knows as a mistake.
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
    ThrowIfError(error << "), not with " << args.size() << " positional inputs");
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
  if (self.is_uneven) ThrowIfError(PadRows(self.executor->executable(), self.batches, self.first_rows, inputs, padded));
  CheckBoundResults(self, inputs);
  return arguments;
}

std::string NameAndText(const nb::python_error& error) {
  return nb::cast<std::string>(nb::str(error.type().attr("__name__"))) + ": " +
         nb::cast<std::string>(nb::str(error.value()));
}

// Prepares a call on this rank. An error aborts the peers at once, because they wait for this rank.
Arguments Prepare(LoadedExecutable& self, const nb::args& args, const nb::kwargs& kwargs) {
  const auto tell = [&](const std::string& what) {
    // No other rank waits for a worker that has its own program.
    if (self.communicator->size() > 1 && self.alone == nullptr) self.communicator->Abort(InvalidArgument() << what);
  };
  try {
    FollowSchedules(self);
    return ArgumentsOf(self, args, kwargs);
  } catch (nb::python_error& error) {
    tell(NameAndText(error));
    throw;
  } catch (const std::exception& error) {
    tell(error.what());
    throw;
  }
}

using Run = std::function<absl::Status(std::span<const NamedInput>, std::span<const NamedResult>)>;

// Calls `run`, without the GIL, with the arguments from Python and with memory for all results, which it returns.
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

// Calls `run`, which runs the step once, with the checks of check_numerics and verify_hardware around it.
absl::Status RunChecked(LoadedExecutable& self, std::span<const NamedInput> inputs,
                        std::span<const NamedResult> results, const std::function<absl::Status()>& run) {
  if (self.numerics == nullptr && self.hardware == nullptr) return run();
  const ExclusiveUse use(self.communicator->in_use());
  if (!use.ok()) return use.Error("the communicator of executor @" + self.executor->executable().name);
  const std::function<absl::Status()> looked_at = [&] {
    return self.numerics == nullptr ? run() : self.numerics->Run(self.step, inputs, results, run);
  };
  try {
    return self.hardware == nullptr ? looked_at() : self.hardware->Run(self.step, inputs, results, looked_at);
  } catch (const std::exception& error) {  // such as std::bad_alloc, while other ranks wait for this one
    self.communicator->Abort(Internal() << "the checks of a step: " << error.what());
    throw;
  }
}

nb::dict Call(LoadedExecutable& self, const nb::args& args, const nb::kwargs& kwargs) {
  const auto run = [&](auto inputs, auto results) {
    return RunChecked(self, inputs, results, [&] { return self.executor->Run(inputs, results); });
  };
  const std::shared_ptr<Outputs> outputs = RunWith(self, args, kwargs, run);
  return Release(self, *outputs, self.step++);
}

nb::object Start(nb::object self, const nb::args& args, const nb::kwargs& kwargs) {
  auto& loaded = nb::cast<LoadedExecutable&>(self);
  int64_t call = 0;
  const bool is_checked = loaded.numerics != nullptr || loaded.hardware != nullptr;
  const auto start = [&](auto inputs, auto results) {
    return RunChecked(loaded, inputs, results, [&]() -> absl::Status {
      ASSIGN_OR_RETURN(call, loaded.executor->Start(inputs, results));
      return is_checked ? loaded.executor->Wait(call) : absl::OkStatus();
    });
  };
  std::shared_ptr<Outputs> outputs = RunWith(loaded, args, kwargs, start);
  ++loaded.step;
  while (!loaded.under_way.empty() && !loaded.executor->IsUnderWay(loaded.under_way.front().first)) {
    loaded.under_way.pop_front();
  }
  if (loaded.executor->IsUnderWay(call)) loaded.under_way.emplace_back(call, outputs);
  nb::list names;
  for (const ValueInfo& info : loaded.executor->executable().results) names.append(nb::str(info.name.c_str()));
  nb::object started =
      nb::cast(std::make_unique<Started>(Started{self, loaded, call, loaded.step - 1, std::move(outputs), {}}));
  return nb::module_::import_("lockstep._base.values").attr("StartedCall")(started, nb::tuple(names));
}

nb::dict Describe(const std::string& name, const ElementCounts& counts) {
  nb::dict dict;
  dict["name"] = ToValidText(name);
  dict["elements"] = counts.elements;
  dict["nans"] = counts.nans;
  dict["infinities"] = counts.infinities;
  dict["least"] = counts.least;
  dict["most"] = counts.most;
  return dict;
}

nb::dict Describe(const NonFinite& found, int64_t step) {
  nb::dict dict;
  dict["text"] = ToValidText(found.ToString(step));
  dict["op"] = ToValidText(found.op);
  dict["layer"] = ToValidText(found.layer);
  dict["rank"] = found.rank;
  dict["value"] = Describe(found.value, found.counts);
  dict["first"] = nb::tuple(nb::cast(found.first));
  dict["iteration"] = ToValidText(found.iteration);
  dict["infinite_since"] = ToValidText(found.infinite_since);
  dict["has_no_effect"] = found.has_no_effect;
  nb::list operands;
  for (const NonFinite::Operand& operand : found.operands) operands.append(Describe(operand.name, operand.counts));
  dict["operands"] = operands;
  dict["becomes_nan"] = ToValidText(found.becomes_nan);
  dict["fused"] = ToValidText(found.fused);
  dict["only_optimized"] = found.only_optimized;
  return dict;
}

// Inputs that do not fit on some rank are an error on all, and nothing else: the training can go on.
nb::object FindNaN(LoadedExecutable& self, const nb::args& args, const nb::kwargs& kwargs) {
  Arguments arguments;
  std::exception_ptr error;
  absl::Status prepared;
  try {
    FollowSchedules(self);
    arguments = ArgumentsOf(self, args, kwargs);
  } catch (nb::python_error& thrown) {
    error = std::current_exception();
    prepared = InvalidArgument() << NameAndText(thrown);
  } catch (const std::exception& thrown) {
    error = std::current_exception();
    prepared = InvalidArgument() << thrown.what();
  }
  absl::StatusOr<std::optional<NonFinite>> found;
  {
    ReleasedGil released;
    const ExclusiveUse use(self.communicator->in_use());
    if (!use.ok()) ThrowIfError(use.Error("find_nan: the communicator"));
    found = FindNonFinite(self, arguments.inputs, *self.communicator, nullptr, prepared);
  }
  if (error != nullptr) std::rethrow_exception(error);
  ThrowIfError(found.status());
  if (!*found) return nb::none();
  return Describe(**found, self.step);
}

nb::dict WaitFor(Started& self) {
  absl::Status status;
  {
    ReleasedGil released;
    status = self.executable.executor->Wait(self.call);
  }
  ThrowIfError(status);
  if (self.outputs != nullptr)
    self.results = Release(self.executable, *std::exchange(self.outputs, nullptr), self.step);
  return self.results;
}

constexpr char kEvaluate[] =
    R"(Calls a program of `lockstep.evaluation` with each of this rank's batches. Returns the loss and the metrics
over the samples of all ranks, as if they were one batch. Collective.

Ranks may have different numbers of batches, or none, and a batch may have fewer rows than a rank's share.
With uneven=False batches are full, and each rank has equally many.

Args:
  batches: the inputs of each call: by name, or as a tuple in order: those of the model, those of the loss,
    and optionally `rows`.

Returns:
  `loss` and each metric, NaN if nothing counts; and, unless uneven=False, `rows`, the number of rows.

Raises:
  Error: a batch has other inputs, in which case the other ranks fail too; or the program is not an
    evaluation.

Example:
  >>> evaluation.evaluate(lockstep.data.batches(images, labels, size=1000, world=world, last="pad"))
  {'loss': 0.2952, 'accuracy': 0.8931, 'rows': 10000})";

void BindExecutableCalls(ExecutableClass& executable) {
  executable.def("__call__", &Call, nb::sig("def __call__(self, **inputs: typing.Any) -> dict[str, numpy.ndarray]"))
      .def("start", &Start,
           "Begins a call, and returns its results by name. Reading a result waits for the call. On a GPU, the inputs\n"
           "of the next call are copied while this one computes. Inputs may be changed when this returns.\n\n"
           "At most two calls are in progress: a third waits for the first. An error of a call is raised by reading\n"
           "its results, or by the next use of the executable if that is earlier. The message then names the calls\n"
           "that may have failed. On a CPU the call has ended when this returns.",
           nb::sig("def start(self, **inputs: typing.Any) -> lockstep._base.values.StartedCall"))
      .def(
          "joined",
          [](nb::object self, nb::handle batches) {
            const nb::module_ module = nb::module_::import_("lockstep._compile.joined");
            module.attr("check")(self);
            return module.attr("joined")(self, batches);
          },
          "batches"_a.none(),
          "Calls the executable with each of this rank's batches, and then without rows until all ranks have no\n"
          "batches left. Yields the results of each call. Requires a step from `train_step(..., uneven=True)`. Ranks\n"
          "may have different numbers of batches, which need not be known. A call in which no rank has a row changes\n"
          "nothing, is not counted as a step, and yields no results. At the end it calls `balance`, if the step is "
          "one\n"
          "of `train_step(..., uneven=\"measured\")`.\n\n"
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
      .def("_find_nan", &FindNaN, nb::sig("def _find_nan(self, **inputs: typing.Any) -> dict[str, typing.Any] | None"))
      .def(
          "_world", [](const LoadedExecutable& self) { return self.world; },
          nb::sig("def _world(self) -> Communicator"))
      .def_prop_ro("_is_uneven", [](const LoadedExecutable& self) { return self.is_uneven; });
}

}  // namespace

void BindExecutable(nb::module_& module) {
  ExecutableClass executable(
      module, "Executable",
      "A compiled program on this rank, with its states. Call it with the inputs by name; it returns the results by\n"
      "name. All ranks call it together. Arrays have this rank's share, and are read without copies if they are in\n"
      "row-major order.\n\n"
      "A call that fails before the first step that writes a state, for example because an input has another shape,\n"
      "changes nothing. If it fails later, it may have updated only some states. Then every call raises an Error with\n"
      "the cause, until all states that the program updates have been assigned again. This applies to one rank. With\n"
      "several ranks, a call that fails on one rank fails on all ranks, and ends their communicator. Restart the job\n"
      "from a checkpoint.");
  nb::class_<Started>(module, "_Started", "A call in progress.")
      .def("wait", &WaitFor, nb::sig("def wait(self) -> dict[str, numpy.ndarray]"));
  BindExecutableCalls(executable);
  BindBinding(executable);
  BindStates(executable);
  BindShares(executable);
  BindSettings(executable);
  BindViews(executable);
  BindRecord(module, executable);
  BindExplain(module, executable);
}

}  // namespace lockstep::python
