// The shares of a batch of a lockstep.Executable. Lockstep chooses them in lockstep/_compile/shares.py.

#include <nanobind/stl/string.h>
#include <nanobind/stl/vector.h>

#include <map>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "backends/compile_and_load.h"
#include "passes/training/uneven.h"
#include "python_bindings/bindings.h"
#include "python_bindings/errors.h"
#include "python_bindings/loaded_executable.h"
#include "python_bindings/released_gil.h"
#include "runtime/exclusive_use.h"
#include "runtime/execution/agreement.h"

namespace lockstep::python {

using namespace nb::literals;

namespace {

// Returns the rows of each rank along `data`.
std::vector<int64_t> SharesOf(const LoadedExecutable& self) {
  if (!self.options.shares.empty()) return self.options.shares;
  if (!self.is_uneven)
    ThrowIfError(FailedPrecondition() << "shares: @" << self.graph.name()
                                      << " requires full batches; train_step(..., uneven=True) makes a step that does "
                                         "not");
  const Mesh& mesh = self.executor->executable().mesh;
  const int64_t ranks = mesh.axis_size(kDataAxis).value_or(1);
  const int64_t rows = self.graph.FindInput(passes::kRows)->value.shape()[0];
  return std::vector<int64_t>(static_cast<size_t>(ranks), rows / ranks);
}

absl::StatusOr<std::map<std::string, Tensor>> StatesOf(Executor& executor) {
  std::map<std::string, Tensor> states;
  for (const ValueInfo& info : executor.executable().states) {
    Tensor& state = states[info.name] = Tensor(info.local_type);
    RETURN_IF_ERROR(executor.ReadState(info.name, {state.type(), state.mutable_bytes()}));
  }
  return states;
}

absl::StatusOr<std::map<std::string, Tensor>> StatesToMove(LoadedExecutable& self) {
  if (!self.bound_states.empty() || !self.bound_results.empty())
    return FailedPrecondition() << "@" << self.graph.name() << ": arrays are bound to states or results, which the "
                                << "program for other shares cannot take over";
  return StatesOf(*self.executor);
}

// Compiles the program for these shares, with the states and settings of the present one, and takes its place.
absl::Status Share(LoadedExecutable& self, std::vector<int64_t> shares) {
  const ExclusiveUse use(self.communicator->in_use());
  if (!use.ok()) return use.Error("shares: the communicator");
  const absl::StatusOr<std::map<std::string, Tensor>> states = StatesToMove(self);
  RETURN_IF_ERROR(AgreeOnSuccess(*self.communicator, "other shares", states.status()));
  LoadOptions options = self.options;
  options.shares = std::move(shares);
  ASSIGN_OR_RETURN(LoadedProgram next,
                   CompileAndLoad(self.graph, *states, *self.backend, std::move(options), *self.communicator));
  for (const SettingInfo& info : self.executor->executable().settings) {
    ASSIGN_OR_RETURN(const double value, self.executor->ReadSetting(info.name));
    RETURN_IF_ERROR(next.executor->Set(info.name, value));
  }
  self.numerics.reset();  // borrows the program
  next.created = std::move(self.created);
  static_cast<LoadedProgram&>(self) = std::move(next);
  if (self.options.check_numerics) self.numerics = std::make_unique<NumericsCheck>(self, *self.communicator);
  return absl::OkStatus();
}

}  // namespace

void BindShares(ExecutableClass& executable) {
  executable
      .def_prop_ro("shares", &SharesOf,
                   "The rows of each batch that each rank along the axis \"data\" has, for a step of "
                   "`train_step(..., uneven=True)`.\nPass the executable to `lockstep.data.batches(..., shares=exe)`, "
                   "which gives each rank its rows.")
      .def(
          "balance",
          [](nb::object self, nb::handle threshold) {
            return nb::module_::import_("lockstep._compile.shares").attr("balance")(self, threshold);
          },
          "threshold"_a.none() = 0.05,
          "Gives ranks shares of the batch by their speeds, for a step of `train_step(..., uneven=\"measured\")`. "
          "Collective.\n\n"
          "The speed of a rank is its number of rows for the time of its kernels in the last calls, without the two "
          "slowest.\nAll ranks find the same shares. If they make the slowest rank faster by more than `threshold`, "
          "the program is compiled\nagain, which keeps states, settings and the number of the step, and for a moment "
          "needs the memory of both programs.\nRank 0 logs a warning that names a rank that has become slow, with its "
          "host and the layer in which it did.\n`Trainer` and `joined` call this themselves.\n\n"
          "Args:\n"
          "  threshold: at least 0. With 0.05, shares change if steps are expected to be faster by more than 5 %.\n\n"
          "Returns:\n"
          "  True if the shares have changed, on all ranks alike. False also if too few calls have ended since the "
          "last change.\n\n"
          "Example:\n"
          "  >>> for epoch in range(10):\n"
          "  ...     for image, label in lockstep.data.batches(images, labels, size=128, world=world, shares=exe):\n"
          "  ...         exe(image=image, label=label)\n"
          "  ...     exe.balance()",
          nb::sig("def balance(self, threshold: float = 0.05) -> bool"))
      .def(
          "_share",
          [](LoadedExecutable& self, std::vector<int64_t> shares) {
            ReleasedGil released;
            ThrowIfError(Share(self, std::move(shares)));
          },
          "shares"_a, nb::sig("def _share(self, shares: collections.abc.Sequence[int]) -> None"))
      .def_prop_rw(
          "_measured", [](const LoadedExecutable& self) { return self.measured; },
          [](LoadedExecutable& self, nb::object measured) { self.measured = std::move(measured); },
          nb::for_getter(nb::sig("def _measured(self) -> lockstep._compile.shares.Measured | None")),
          nb::for_setter(
              nb::sig("def _measured(self, measured: lockstep._compile.shares.Measured | None, /) -> None")));
}

}  // namespace lockstep::python
