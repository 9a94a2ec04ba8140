// Views of a lockstep.Executable: its program, memory and times.

#include <nanobind/stl/map.h>
#include <nanobind/stl/optional.h>
#include <nanobind/stl/pair.h>
#include <nanobind/stl/string.h>
#include <nanobind/stl/tuple.h>
#include <nanobind/stl/vector.h>

#include <algorithm>
#include <optional>
#include <stdexcept>
#include <string>
#include <utility>
#include <vector>

#include "backends/roofline.h"
#include "core/printer.h"
#include "passes/pipeline.h"
#include "python_bindings/bindings.h"
#include "python_bindings/errors.h"
#include "python_bindings/loaded_executable.h"
#include "python_bindings/released_gil.h"
#include "runtime/execution/executor.h"

namespace lockstep::python {

namespace nb = nanobind;
using namespace nb::literals;

namespace {

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

// Returns the seconds of each step in a call: the mean since loading.
std::vector<double> MeanSeconds(const Executor& executor) {
  const auto runs = static_cast<double>(std::max<int64_t>(1, executor.counters().runs));
  std::vector<double> seconds;
  for (const StepProfile& step : executor.profile()) seconds.push_back(step.seconds / runs);
  return seconds;
}

const char* ArithmeticName(Arithmetic arithmetic) {
  switch (arithmetic) {
    case Arithmetic::kF32: return "f32";
    case Arithmetic::kF64: return "f64";
    case Arithmetic::kTF32: return "tf32";
    case Arithmetic::k16Bits: return "16 bits";
  }
  return "";
}

// `measured` has the seconds of all steps in a call; without it, they are the means since loading.
nb::dict RooflineFields(const LoadedExecutable& self, int depth, const std::optional<std::vector<double>>& measured) {
  const Executable& executable = self.executor->executable();
  if (measured && measured->size() != executable.steps.size())
    throw std::invalid_argument("expected a time for each of " + std::to_string(executable.steps.size()) + " steps");
  Ceilings ceilings;
  {
    ReleasedGil released;
    ceilings = ValueOrThrow(executable.ceilings());
  }
  constexpr size_t kMostSteps = 8;  // printed
  const Roofline roofline = RooflineOf(executable, ceilings, depth, measured ? *measured : MeanSeconds(*self.executor));
  nb::list steps;
  for (const StepFloor& floor : roofline.steps) {
    const Work& work = floor.step->work;
    steps.append(nb::make_tuple(ToValidText(floor.step->ToString()), ToValidText(floor.step->name),
                                ToValidText(floor.layer), work.operations, ArithmeticName(work.arithmetic), work.bytes,
                                floor.by_operations, floor.by_bytes, floor.measured, floor.lost));
  }
  nb::dict fields, rates;
  for (size_t i = 0; i < ceilings.operations_per_second.size(); ++i)
    rates[ArithmeticName(static_cast<Arithmetic>(i))] = ceilings.operations_per_second[i];
  fields["machine"] = ceilings.machine;
  fields["bytes_per_second"] = ceilings.bytes_per_second;
  fields["operations_per_second"] = rates;
  fields["seconds"] = roofline.all.seconds;
  fields["operations"] = roofline.all.operations;
  fields["bytes"] = roofline.all.bytes;
  fields["least_bytes"] = roofline.least_bytes;
  fields["steps"] = steps;
  fields["text"] = ToValidText(roofline.ToString(roofline.is_measured ? kMostSteps : 0));
  return fields;
}

}  // namespace

void BindViews(ExecutableClass& executable) {
  executable
      .def_prop_ro(
          "graph",
          [](const LoadedExecutable& self) {
            return Model{ValueOrThrow(ParseGraph(self.executor->executable().graph_text)), {}, self.origin, {}, {}};
          },
          "The local program of this rank, after all passes.")
      .def_prop_ro(
          "steps", [](const LoadedExecutable& self) { return ToValidText(self.executor->executable().ToString()); },
          "The steps of a call, as text.")
      .def(
          "summary",
          [](nb::object self, nb::object depth) {
            return nb::module_::import_("lockstep._graph.layers").attr("executable_summary")(self, depth);
          },
          "depth"_a = nb::none(),
          "The number of steps of each kind in a call, and graph.summary(). A reference step is an op for which the\n"
          "backend has no kernel. It is slow.",
          nb::sig("def summary(self, depth: int | None = None) -> str"))
      .def_prop_ro("collectives", &CollectiveLines,
                   "A line for each collective of a call, in order. Ranks compare these when they load.",
                   nb::sig("def collectives(self) -> list[str]"))
      .def_prop_ro("memory", &Memory,
                   "The bytes that this rank holds between and during calls: states, constants, the arena, in which "
                   "everything else lies that\n"
                   "a call computes, and the buckets of collectives. Inputs and results are the caller's.",
                   nb::sig("def memory(self) -> dict[str, int]"))
      .def_prop_ro(
          "unregistered",
          [](const LoadedExecutable& self) {
            nb::dict reasons;
            for (const auto& [bucket, reason] : self.executor->unregistered())
              reasons[ToValidText(bucket).c_str()] = ToValidText(reason);
            return reasons;
          },
          "The buckets that NCCL has not registered, with the reason. Collectives copy them, which takes longer. "
          "Empty\n"
          "on CPUs.",
          nb::sig("def unregistered(self) -> dict[str, str]"))
      .def_prop_ro("recomputed", &Recomputed,
                   "What a call computes again because of `memory_limit`: how many `kernels` run again, and the "
                   "`operations` and the\n"
                   "`bytes` read and written of those, each as a share of what the call computes without.",
                   nb::sig("def recomputed(self) -> dict[str, float]"))
      .def_prop_ro(
          "strategy",
          [](nb::object self) {
            const std::string& text = nb::cast<const LoadedExecutable&>(self).strategy;
            return nb::module_::import_("lockstep._compile.strategy").attr("Strategy").attr("parse")(text);
          },
          "What it was compiled with: the options that all ranks have in common, and are not the default.",
          nb::sig("def strategy(self) -> lockstep.Strategy"))
      .def_prop_ro(
          "passes",
          [](const LoadedExecutable& self) {
            passes::PipelineOptions options;
            options.optimize = self.options.optimize;
            options.extra = self.options.passes;
            nb::list names;
            for (const passes::Pass& pass : passes::MakePipeline(options)) names.append(pass.name);
            return nb::tuple(names);
          },
          "The passes that made its program, in order, with those of compile(passes=…).",
          nb::sig("def passes(self) -> tuple[str, ...]"))
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
          [](nb::object self) { return nb::module_::import_("lockstep._compile.servers").attr("staleness_of")(self); },
          "How late gradients were, of a program compiled with strategy=\"parameter_server\": the updates by other "
          "workers between\n"
          "the pull that a gradient was made from and its push. It counts the updates of the whole job.",
          nb::sig("def staleness(self) -> lockstep.kv.Staleness"))
      .def_prop_ro(
          "threads", [](const LoadedExecutable& self) { return self.executor->executable().threads; },
          "The number of threads of this rank.")
      .def_prop_ro(
          "counters", &Counters,
          "Seconds of this thread since loading, in calls that were waited for and succeeded: total, in kernels, and\n"
          "in communication; and the number of calls, runs. On a GPU the times of kernels and communication are those\n"
          "of queuing them, unless compile(profile=True).",
          nb::sig("def counters(self) -> dict[str, float]"))
      .def_prop_ro(
          "profile", &Profile,
          "The steps of a call in order, each with its seconds since loading, in calls that succeeded. On a GPU they\n"
          "are known only with compile(profile=True).",
          nb::sig("def profile(self) -> list[tuple[str, float]]"))
      .def("_roofline", &RooflineFields, "depth"_a, "measured"_a = nb::none(),
           nb::sig("def _roofline(self, depth: int, measured: list[float] | None = None) -> dict[str, typing.Any]"))
      .def(
          "roofline",
          [](nb::object self, nb::object depth) {
            return nb::module_::import_("lockstep._reports.roofline").attr("roofline_of_executable")(self, depth);
          },
          "depth"_a.none() = 2,
          "The least time that the steps of a call take, by their operations and by the bytes that they read and "
          "write:\n"
          "on the GPU that it is compiled for, if its model is known, or on this processor, which is measured for "
          "about\n"
          "0.5 s. It prints as tables by kind of step and by layer, whose names have at most `depth` parts. After "
          "calls "
          "it\n"
          "also has the measured times, as in `profile`, and what is lost: the measured time less the least one. "
          "`report`\n"
          "has the same of the last calls. Communication is left out.\n"
          "\n"
          "Raises:\n"
          "  Error: the model of the GPU is not known.",
          nb::sig("def roofline(self, depth: int = 2) -> lockstep._reports.roofline.Roofline"))
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

}  // namespace lockstep::python
