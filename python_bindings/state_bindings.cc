// The states and settings of a lockstep.Executable: on this rank, of all ranks together, and in files.

#include <nanobind/stl/map.h>
#include <nanobind/stl/string.h>
#include <nanobind/stl/vector.h>

#include <algorithm>
#include <map>
#include <string>
#include <vector>

#include "python_bindings/bindings.h"
#include "python_bindings/errors.h"
#include "python_bindings/loaded_executable.h"
#include "python_bindings/operand.h"
#include "python_bindings/released_gil.h"
#include "runtime/exclusive_use.h"
#include "runtime/execution/agreement.h"
#include "runtime/execution/whole_state.h"

namespace lockstep::python {

using namespace nb::literals;

namespace {

const ValueInfo& FindState(const LoadedExecutable& self, const std::string& name) {
  const std::vector<ValueInfo>& states = self.executor->executable().states;
  const auto state =
      std::find_if(states.begin(), states.end(), [&](const ValueInfo& info) { return info.name == name; });
  if (state == states.end()) ThrowIfError(NotFound() << "there is no state " << name);
  return *state;
}

// --- On this rank

nb::object ReadState(LoadedExecutable& self, const std::string& name) {
  OutputArray array(FindState(self, name).local_type);
  absl::Status status;
  {
    ReleasedGil released;  // ReadState waits for runs in progress
    status = self.executor->ReadState(name, array.ref());
  }
  ThrowIfError(status);
  return array.Release();
}

void ReadStateInto(LoadedExecutable& self, const std::string& name, nb::handle array) {
  const TensorType& type = FindState(self, name).local_type;
  const Operand operand(array, true, "state " + name);
  if (operand.size() != type.num_bytes())
    ThrowIfError(InvalidArgument() << "state " << name << " is " << type << ", and the array has " << operand.size()
                                   << " bytes");
  ReleasedGil released;
  ThrowIfError(self.executor->ReadState(name, {type, operand.data()}));
}

void AssignState(LoadedExecutable& self, const std::string& name, nb::object value) {
  const InputArray array = CastToArray(value, "state " + name, &FindState(self, name).local_type);
  const ConstTensorRef tensor = BorrowArray(array, "state " + name);
  ReleasedGil released;
  ThrowIfError(self.executor->AssignState(name, tensor));
}

std::vector<std::string> StateNames(const LoadedExecutable& self) {
  std::vector<std::string> names;
  for (const ValueInfo& state : self.executor->executable().states) names.push_back(state.name);
  return names;
}

std::vector<std::string> OwnStateNames(const LoadedExecutable& self) {
  std::vector<std::string> names;
  for (const ValueInfo& state : self.executor->executable().states) {
    if (state.is_here()) names.push_back(state.name);
  }
  return names;
}

void SaveOnnx(LoadedExecutable& self, const std::string& path) {
  if (!self.origin)
    ThrowIfError(FailedPrecondition() << "save_onnx: the executable was not made from an imported ONNX model");
  ReleasedGil released;
  ThrowIfError(Annotate(self.executor->CheckUsable(), "save_onnx"));
  std::map<std::string, Tensor> values;
  for (const ValueInfo& state : self.executor->executable().states) {
    if (state.local_type != state.global_type)
      ThrowIfError(Unimplemented() << "save_onnx: state " << state.name << " is split over the ranks");
    Tensor value(state.local_type);
    ThrowIfError(self.executor->ReadState(state.name, {state.local_type, value.mutable_bytes()}));
    values.emplace(state.name, std::move(value));
  }
  ThrowIfError(ExportOnnx(*self.origin, values, path));
}

// --- Of all ranks together

void CheckReplicasOf(LoadedExecutable& self) {
  if (self.alone != nullptr) return;  // a worker of asynchronous servers has no replicas
  ReleasedGil released;
  const ExclusiveUse use(self.communicator->in_use());
  if (!use.ok()) ThrowIfError(use.Error("check_replicas: the communicator"));
  ThrowIfError(CheckReplicas(*self.executor, *self.communicator));
}

void CheckUsable(LoadedExecutable& self) {
  ReleasedGil released;
  ThrowIfError(self.executor->CheckUsable());
}

nb::list WholeStates(const LoadedExecutable& self) {
  nb::list list;
  for (const ValueInfo& state : self.executor->executable().states)
    list.append(DescribeValue(state.name, state.global_type, state.placements));
  return list;
}

// Returns the bytes of the whole state on rank 0, and None on the others.
nb::object ReadWhole(LoadedExecutable& self, const std::string& name) {
  const TensorType& type = FindState(self, name).global_type;
  absl::Status status;
  if (self.communicator->rank() != 0) {
    ReleasedGil released;
    status = ReadWholeState(*self.executor, *self.communicator, name, {type, nullptr});
  }
  ThrowIfError(status);
  if (self.communicator->rank() != 0) return nb::none();
  OutputArray bytes({DType::kU8, Shape({static_cast<int64_t>(type.num_bytes())})});
  {
    ReleasedGil released;
    status = ReadWholeState(*self.executor, *self.communicator, name, {type, bytes.ref().data});
  }
  ThrowIfError(status);
  return bytes.Release();
}

using ByteArray = nb::ndarray<const uint8_t, nb::numpy, nb::ndim<1>, nb::c_contig, nb::device::cpu>;

void AssignWhole(LoadedExecutable& self, const std::string& name, const ByteArray& bytes) {
  const TensorType& type = FindState(self, name).global_type;
  if (bytes.size() != type.num_bytes()) {
    ThrowIfError(InvalidArgument() << "state " << name << ": " << bytes.size() << " bytes for " << type
                                   << ", which has " << type.num_bytes());
  }
  ReleasedGil released;
  ThrowIfError(self.executor->AssignState(name, {type, bytes.data()}));
}

// The description of the program in a checkpoint.
std::map<std::string, std::string> Program(const LoadedExecutable& self) {
  const Executable& executable = self.executor->executable();
  return {{"name", executable.name},
          {"backend", executable.backend},
          {"mesh", executable.mesh.ToString()},
          {"built_with", ToValidText(executable.fingerprint)}};
}

void CheckSetting(const LoadedExecutable& self, const std::string& name, double value) {
  for (const SettingInfo& info : self.executor->executable().settings) {
    if (info.name == name) ThrowIfError(CheckValue(info, value));
  }
}

// --- In files, by lockstep/_checkpoint/checkpoint.py

constexpr char kSave[] =
    R"(Writes all states to a file, from which any number of ranks can continue. Collective, with equal arguments.

Waits for calls in progress. Rank 0 writes, and its errors are raised on all ranks. The file appears complete
or not at all, even if the process or the machine stops; until then an existing file remains. It is a
safetensors file with the settings and with the states by name, as whole states even if ranks share them.

Args:
  path: of the file.
  step: the number of the training step, which load() returns; exe.step if None.
  metadata: further values that load() returns, such as {"data_position": 1200}: names with texts, whole
    numbers, floats or bools.
  background: True returns when the states are copied, while a thread of rank 0 writes. The next save(),
    load() or saved() waits for the thread, and raises its error before doing anything else. The logger
    `lockstep` reports the error at once. A process that ends normally waits for the thread.

Raises:
  Error: names the file and, if there are several ranks, the rank and its host.

Example:
  >>> exe.save("training.safetensors", metadata={"epoch": 3})
  >>> exe.load("training.safetensors")
  {'step': 1200, 'epoch': 3})";

constexpr char kSaved[] =
    R"(Waits until the last save(background=True) has been written. Raises its error, once. Collective.)";

constexpr char kLoad[] =
    R"(Restores all states from a file of save(), which any number of ranks may have written. Collective; each rank
reads the file.

exe.step becomes that of the file, and so do settings, except those that follow a schedule. Settings that only
the file or only the program has are ignored.

Returns:
  The metadata given to save(), and `step`.

Raises:
  Error: before anything is changed, if the file is damaged or differs between ranks, or if the program has
    other states, with the first difference, or a setting that does not allow the file's value.)";

nb::object Checkpoint(const char* function) {
  return nb::module_::import_("lockstep._checkpoint.checkpoint").attr(function);
}

void BindFiles(ExecutableClass& executable) {
  const auto save = [](nb::object self, nb::object path, nb::object step, nb::object metadata, nb::object background) {
    Checkpoint("save")(self, path, step, metadata, background);
  };
  const auto load = [](nb::object self, nb::object path) { return Checkpoint("load")(self, path); };
  executable
      .def("save", save, "path"_a.none(), nb::kw_only(), "step"_a = nb::none(), "metadata"_a = nb::none(),
           "background"_a.none() = false, kSave,
           nb::sig("def save(self, path: str | os.PathLike[str], *, step: int | None = None, metadata: "
                   "collections.abc.Mapping[str, str | int | float] | None = None, background: bool = False) -> None"))
      .def(
          "saved", [](nb::object self) { Checkpoint("saved")(self); }, kSaved, nb::sig("def saved(self) -> None"))
      .def("load", load, "path"_a.none(), kLoad,
           nb::sig("def load(self, path: str | os.PathLike[str]) -> dict[str, str | int | float]"))
      .def("_saving", [](const LoadedExecutable& self) { return self.saving; })
      .def(
          "_set_saving", [](LoadedExecutable& self, nb::object saving) { self.saving = std::move(saving); },
          "saving"_a.none())
      .def("_program", &Program)
      .def("_check_usable", &CheckUsable)
      .def(
          "_doubt_states",
          [](LoadedExecutable& self, const std::string& why) {
            ThrowIfError(self.executor->InvalidateStates(FailedPrecondition() << why));
          },
          "why"_a)
      .def("_whole_states", &WholeStates, nb::sig("def _whole_states(self) -> list[lockstep._base.values.ValueInfo]"))
      .def("_read_whole", &ReadWhole, "name"_a, nb::sig("def _read_whole(self, name: str) -> numpy.ndarray | None"))
      .def("_assign_whole", &AssignWhole, "name"_a, "bytes"_a,
           nb::sig("def _assign_whole(self, name: str, bytes: numpy.ndarray) -> None"));
}

}  // namespace

void BindStates(ExecutableClass& executable) {
  executable
      .def_prop_ro(
          "state", [](nb::object self) { return nb::module_::import_("lockstep._base.values").attr("State")(self); },
          "The states on this rank by name, for reading and assigning.",
          nb::sig("def state(self) -> lockstep._base.values.State"))
      .def("_read_state", &ReadState, "name"_a, nb::sig("def _read_state(self, name: str) -> numpy.ndarray"))
      .def("_read_state_into", &ReadStateInto, "name"_a, "array"_a,
           nb::sig("def _read_state_into(self, name: str, array: numpy.ndarray) -> None"))
      .def("_assign_state", &AssignState, "name"_a, "value"_a.none())
      .def("_state_names", &StateNames)
      .def("_own_state_names", &OwnStateNames)
      .def("check_replicas", &CheckReplicasOf,
           "Raises an Error if the bits of a state differ between its replicas. The Error names the first such state.\n"
           "Collective. Workers of asynchronous servers have no replicas.")
      .def("_save_onnx", &SaveOnnx, "path"_a);
  BindFiles(executable);
}

void BindSettings(ExecutableClass& executable) {
  executable
      .def_prop_rw(
          "step", [](const LoadedExecutable& self) { return self.step; },
          [](LoadedExecutable& self, nb::object step) {
            const nb::object checked = nb::module_::import_("lockstep._base.checks").attr("integer")("step", step, 0);
            self.step = nb::cast<int64_t>(checked);
          },
          "The number of calls so far, which is passed to schedules in the next call. A call that fails immediately\n"
          "is not counted. Assign it to resume training.",
          nb::for_setter("step"_a.none()))
      .def_prop_ro(
          "settings",
          [](nb::object self) { return nb::module_::import_("lockstep._compile.settings").attr("Settings")(self); },
          "The numbers that may change between calls, by name, for reading and assigning.",
          nb::sig("def settings(self) -> lockstep._compile.settings.Settings"))
      .def(
          "set",
          [](nb::object self, const nb::kwargs& values) {
            nb::module_::import_("lockstep._compile.settings").attr("set_by_keyword")(self, values);
          },
          "Sets settings from the next call on: exe.set(learning_rate=0.01). Nothing is recompiled. All ranks set the\n"
          "same values; otherwise the next call of a training step raises an Error that shows both values.\n\n"
          "A value is a number, or a function of `step`, such as one of lockstep.schedule, which is called before\n"
          "each call. The name is that in `settings` or its last part: learning_rate is optimizer/learning_rate.",
          nb::sig("def set(self, **values: float | collections.abc.Callable[[int], float]) -> None"))
      .def(
          "_set",
          [](LoadedExecutable& self, const std::string& name, double value) {
            ThrowIfError(self.executor->Set(name, value));
          },
          "name"_a, "value"_a)
      .def("_check_setting", &CheckSetting, "name"_a, "value"_a)
      .def(
          "_setting",
          [](LoadedExecutable& self, const std::string& name) {
            return ValueOrThrow(self.executor->ReadSetting(name));
          },
          "name"_a)
      .def("_setting_names",
           [](const LoadedExecutable& self) {
             std::vector<std::string> names;
             for (const SettingInfo& info : self.executor->executable().settings) names.push_back(info.name);
             return names;
           })
      .def_prop_ro(
          "_schedules", [](const LoadedExecutable& self) { return self.schedules; },
          nb::sig("def _schedules(self) -> dict[str, collections.abc.Callable[[int], float]]"))
      .def_prop_ro(
          "_wrong_labels", [](const LoadedExecutable& self) { return self.wrong_labels; },
          nb::sig("def _wrong_labels(self) -> dict[str, tuple[list[int], str]]"))
      .def_prop_ro(
          "_exchanged", [](const LoadedExecutable& self) { return self.exchanged; },
          nb::sig("def _exchanged(self) -> dict[str, dict[str, numpy.ndarray]]"));
}

}  // namespace lockstep::python
