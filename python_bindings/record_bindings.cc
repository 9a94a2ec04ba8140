// The records of ranks, for `lockstep status`, `lockstep report` and Executable.report().

#include <nanobind/stl/optional.h>
#include <nanobind/stl/string.h>
#include <nanobind/stl/vector.h>

#include <algorithm>
#include <string>
#include <utility>
#include <vector>

#include "core/text.h"
#include "python_bindings/bindings.h"
#include "python_bindings/errors.h"
#include "python_bindings/loaded_executable.h"
#include "python_bindings/released_gil.h"
#include "runtime/execution/reduced_tensors.h"
#include "runtime/record/clock.h"
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

// Events are passed as bytes, which lockstep/_reports/record.py parses, because a trace may have millions.
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

// Returns the records of a job's ranks, or of all jobs' if `job` is empty, each with the name of its job, its state,
// the seconds in that state, and whether the rank is late.
nb::list RanksOfJobs(const std::string& job) {
  std::vector<std::pair<std::string, std::vector<RankRecord>>> jobs;
  {
    ReleasedGil released;
    const std::string root = RootOfJobs();
    const std::vector<std::string> names =
        job.empty() ? Jobs(root) : std::vector<std::string>{ValueOrThrow(FindJob(root, job))};
    for (const std::string& name : names) jobs.emplace_back(name, ReadRecords(root + "/" + name));
  }
  nb::list ranks;
  for (const auto& [name, records] : jobs) {
    const int64_t now = RecordNow();
    for (const RankStatus& status : StatusOf(records, now)) {
      nb::dict dict = ToDict(*status.record);
      dict["job"] = ToValidText(name);
      dict["state"] = status.state();
      dict["seconds"] = static_cast<double>(std::max<int64_t>(now - status.activity.since, 0)) * 1e-9;
      dict["is_late"] = status.is_late;
      ranks.append(dict);
    }
  }
  return ranks;
}

// Returns the folder of the trace, its merged file, and the records of the ranks.
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

// Returns this rank's record, with the number of the executable's program in it; None if nothing is recorded.
nb::object RecordOf(const LoadedExecutable& self) {
  const Recorder* const recorder = self.communicator->recorder();
  if (recorder == nullptr) return nb::none();
  nb::dict dict = ToDict(recorder->Read());
  dict["program"] = self.executor->recorded_as();
  return dict;
}

// Returns the tensors that the program reduces: name, bytes, and the steps that compute it, wait for its sum and use
// it.
nb::list ReducedTensorsOf(const LoadedExecutable& self) {
  nb::list tensors;
  for (const ReducedTensor& each : ReducedTensors(self.executor->executable().steps))
    tensors.append(nb::make_tuple(ToValidText(each.name), each.bytes, each.computed_by, each.waited_by, each.used_by));
  return tensors;
}

}  // namespace

void BindRecord(nb::module_& module, ExecutableClass& executable) {
  module.def("_status", &Status, "job"_a);
  module.def("_ranks_of_jobs", &RanksOfJobs, "job"_a,
             nb::sig("def _ranks_of_jobs(job: str) -> list[dict[str, typing.Any]]"));
  module.def("_trace", &Trace, "folder"_a,
             nb::sig("def _trace(folder: str) -> tuple[str, str, list[dict[str, typing.Any]]]"));
  module.def(
      "_set_recording",
      [](Communicator& world, bool on) {
        if (world.recorder() != nullptr) world.recorder()->set_on(on);
      },
      "world"_a, "on"_a, "Switches recording on or off, to measure its cost.");
  executable
      .def("_reduced_tensors", &ReducedTensorsOf,
           nb::sig("def _reduced_tensors(self) -> list[tuple[str, int, int, int, list[int]]]"))
      .def("_record", &RecordOf, nb::sig("def _record(self) -> dict[str, typing.Any] | None"))
      .def(
          "report",
          [](nb::object self, nb::object calls, nb::object roofline, nb::object depth) {
            return nb::module_::import_("lockstep._reports.report")
                .attr("report_of_executable")(self, calls, roofline, depth);
          },
          "calls"_a = nb::none(), "roofline"_a.none() = false, "depth"_a.none() = 2,
          "A report of the time of the last calls on this rank: in kernels, in communication (exposed, or hidden\n"
          "behind kernels), and in waiting, by rank. In a program with parameter servers, pushes and pulls are\n"
          "exposed communication. The report then has the bytes sent to and received from servers and, if they are\n"
          "asynchronous, the staleness of gradients. It prints as a table. `compile(buckets=report)` uses it to\n"
          "choose buckets.\n\n"
          "Args:\n"
          "  calls: the number of last calls; None is all recorded calls, a few hundred.\n"
          "  roofline: also compare the steps with their least time, as `roofline` does. The time of the kernels is "
          "then\n"
          "    that least time and what is lost beside it, by kind of step and by layer. The ceilings of a CPU are\n"
          "    measured for about 0.5 s. On a GPU it needs compile(profile=True).\n"
          "  depth: the number of parts that names of layers have at most.\n\n"
          "Raises:\n"
          "  Error: no call has ended yet, or the times of steps or the ceilings of the GPU are not known.",
          nb::sig("def report(self, calls: int | None = None, roofline: bool = False, depth: int = 2) -> "
                  "lockstep._reports.report.Report"));
}

}  // namespace lockstep::python
