// What ranks have recorded: for `lockstep status`, `lockstep report` and Executable.report().

#include <nanobind/stl/optional.h>
#include <nanobind/stl/string.h>
#include <nanobind/stl/vector.h>

#include <vector>

#include "core/text.h"
#include "python_bindings/bindings.h"
#include "python_bindings/errors.h"
#include "python_bindings/loaded_executable.h"
#include "python_bindings/released_gil.h"
#include "runtime/execution/reduced_tensors.h"
#include "runtime/record/job_folder.h"
#include "runtime/record/job_status.h"
#include "runtime/record/recorder.h"
#include "runtime/record/trace_file.h"

namespace lockstep::python {

namespace nb = nanobind;
using namespace nb::literals;

namespace {

const char* NameOf(RecordedStep::Kind kind) {
  switch (kind) {
    case RecordedStep::Kind::kKernel: return "kernel";
    case RecordedStep::Kind::kCopy: return "copy";
    case RecordedStep::Kind::kStart: return "start";
    case RecordedStep::Kind::kWait: return "wait";
    case RecordedStep::Kind::kPush: return "push";
    case RecordedStep::Kind::kStartPull: return "start_pull";
    case RecordedStep::Kind::kWaitPull: return "wait_pull";
  }
  return "";
}

nb::list StepsOf(const RecordedProgram& program) {
  nb::list steps;
  for (const RecordedStep& step : program.steps) {
    steps.append(nb::make_tuple(NameOf(step.kind), ToValidText(step.name), ToValidText(step.source),
                                ToValidText(step.label), step.bytes, step.is_urgent));
  }
  return steps;
}

// Events as bytes, which lockstep/_reports/record.py takes apart: a trace may have millions.
template <typename Event>
nb::bytes BytesOf(const std::vector<Event>& events) {
  return nb::bytes(events.data(), events.size() * sizeof(Event));
}

nb::dict ToDict(const RankRecord& record) {
  nb::dict dict, programs;
  for (const RecordedProgram& program : record.programs)
    programs[nb::int_(program.index)] = nb::make_tuple(ToValidText(program.name), StepsOf(program));
  dict["rank"] = record.facts.rank;
  dict["size"] = record.facts.size;
  dict["process"] = record.facts.process;
  dict["host"] = ToValidText(record.facts.host);
  dict["transport"] = record.facts.transport;
  dict["world"] = record.facts.world;
  dict["clock_ahead"] = record.facts.clock_ahead;
  dict["failure"] = ToValidText(record.failure);
  dict["lost"] = record.lost;
  dict["programs"] = programs;
  dict["steps"] = BytesOf(record.steps);
  dict["transfers"] = BytesOf(record.transfers);
  return dict;
}

std::string Status(const std::string& job) {
  ReleasedGil released;
  return ToValidText(ValueOrThrow(StatusText(RootOfJobs(), job)));
}

// The folder of the trace, its merged file, and what each rank recorded.
nb::tuple Trace(const std::string& folder) {
  std::string found, merged;
  std::vector<RankRecord> records;
  {
    ReleasedGil released;
    found = ValueOrThrow(FindTrace(folder));
    merged = ValueOrThrow(MergeTrace(found));
    records = ValueOrThrow(ReadTrace(found));
  }
  nb::list ranks;
  for (const RankRecord& record : records) ranks.append(ToDict(record));
  return nb::make_tuple(found, merged, ranks);
}

// What this rank has recorded, and the number of the executable's program there; None if nobody records.
nb::object RecordOf(const LoadedExecutable& self) {
  const Recorder* const recorder = self.communicator->recorder();
  if (recorder == nullptr) return nb::none();
  nb::dict dict = ToDict(recorder->Read());
  dict["program"] = self.executor->recorded_as();
  return dict;
}

// What the program's reductions take: name, bytes, and the steps that compute it, wait for its sum and use that.
nb::list ReducedTensorsOf(const LoadedExecutable& self) {
  nb::list tensors;
  for (const ReducedTensor& each : ReducedTensors(self.executor->executable().steps))
    tensors.append(nb::make_tuple(ToValidText(each.name), each.bytes, each.computed_by, each.waited_by, each.used_by));
  return tensors;
}

}  // namespace

void BindRecord(nb::module_& module, ExecutableClass& executable) {
  module.def("_status", &Status, "job"_a);
  module.def("_trace", &Trace, "folder"_a,
             nb::sig("def _trace(folder: str) -> tuple[str, str, list[dict[str, typing.Any]]]"));
  module.def(
      "_set_recording",
      [](Communicator& world, bool on) {
        if (world.recorder() != nullptr) world.recorder()->set_on(on);
      },
      "world"_a, "on"_a, "For measuring what it costs.");
  executable
      .def("_reduced_tensors", &ReducedTensorsOf,
           nb::sig("def _reduced_tensors(self) -> list[tuple[str, int, int, int, list[int]]]"))
      .def("_record", &RecordOf, nb::sig("def _record(self) -> dict[str, typing.Any] | None"))
      .def(
          "report",
          [](nb::object self, nb::object calls) {
            return nb::module_::import_("lockstep._reports.report").attr("report_of_executable")(self, calls);
          },
          "calls"_a = nb::none(),
          "Where the time of the last calls went, on this rank: in kernels, in communication that was exposed or "
          "hidden "
          "behind them, and in\n"
          "waiting, for which rank. Of a program whose weights parameter servers have, pushes and pulls are exposed "
          "communication; it\n"
          "says how many bytes went there and came from there, and, if asynchronous, how late gradients were. Printed, "
          "a table;\n"
          "`compile(buckets=report)` chooses buckets by it.\n\n"
          "Args:\n"
          "  calls: how many of the last calls; None: as many as are recorded, a few hundred.",
          nb::sig("def report(self, calls: int | None = None) -> lockstep._reports.report.Report"));
}

}  // namespace lockstep::python
