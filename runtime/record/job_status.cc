#include "runtime/record/job_status.h"

#include <algorithm>
#include <cstdio>
#include <map>
#include <optional>
#include <utility>

#include "core/status.h"
#include "runtime/process/process.h"
#include "runtime/record/clock.h"
#include "runtime/record/job_folder.h"
#include "runtime/record/record_file.h"
#include "runtime/record/recorder.h"

namespace lockstep {
namespace {

// Returns the oldest collective in progress in its latest phase, with its label and the beginning of that phase.
std::optional<TransferEvent> UnderWay(const std::vector<TransferEvent>& events) {
  std::map<std::pair<uint32_t, uint64_t>, TransferEvent> under_way;
  for (const TransferEvent& event : events) {
    const std::pair key(event.communicator, event.sequence);
    if (event.phase == TransferEvent::Phase::kMoved) {
      under_way.erase(key);
    } else if (event.phase == TransferEvent::Phase::kPosted) {
      under_way[key] = event;
    } else if (const auto posted = under_way.find(key); posted != under_way.end()) {
      posted->second.phase = event.phase;
      posted->second.time = event.time;
    }
  }
  if (under_way.empty()) return std::nullopt;
  // The rank is in the communicator that it used last.
  const uint32_t communicator = events.back().communicator;
  const auto oldest = under_way.lower_bound({communicator, 0});
  return oldest == under_way.end() ? under_way.begin()->second : oldest->second;
}

bool IsInCall(const StepEvent& event) {
  return event.kind != StepEvent::Kind::kEnd && event.kind != StepEvent::Kind::kFailed;
}

// Returns null if this is not a step with a known name.
const RecordedStep* StepOf(const StepEvent& event, const RecordedProgram* program) {
  if (event.kind != StepEvent::Kind::kStep || program == nullptr || event.step < 0) return nullptr;
  return static_cast<size_t>(event.step) < program->steps.size() ? &program->steps[static_cast<size_t>(event.step)]
                                                                 : nullptr;
}

// Returns true if the rank's own thread is at a point where it may wait for other ranks.
bool IsInCollective(const StepEvent& event, const RecordedProgram* program) {
  if (event.kind == StepEvent::Kind::kCompare) return true;
  const RecordedStep* const step = StepOf(event, program);
  return step != nullptr && (step->kind == RecordedStep::Kind::kStart || step->kind == RecordedStep::Kind::kWait);
}

// Returns true if it may wait for parameter servers, and the workers for which these wait.
bool IsAtServers(const StepEvent& event, const RecordedProgram* program) {
  const RecordedStep* const step = StepOf(event, program);
  return step != nullptr && (step->kind == RecordedStep::Kind::kPush || step->kind == RecordedStep::Kind::kWaitPull);
}

std::string CallText(const StepEvent& event, const RecordedProgram* program) {
  std::string text = "call " + std::to_string(event.call);
  if (program == nullptr) return text;
  text += " of @" + program->name;
  return program->part.empty() ? text : text + ", " + program->part;
}

Activity OutsideCalls(const RankRecord& record, const std::optional<TransferEvent>& transfer) {
  const StepEvent* const last = record.steps.empty() ? nullptr : &record.steps.back();
  // A collective of a failed call is not one for which it waits.
  if (transfer.has_value() && (last == nullptr || transfer->time > last->time)) {
    const bool moves = transfer->phase == TransferEvent::Phase::kMet;
    return {moves ? Activity::Kind::kMoves : Activity::Kind::kWaits, transfer->time, transfer->label};
  }
  int64_t since = last == nullptr ? 0 : last->time;
  if (!record.transfers.empty()) since = std::max(since, record.transfers.back().time);
  std::string where = "no call yet";
  if (last != nullptr) {
    where = (last->kind == StepEvent::Kind::kFailed ? "failed in " : "after ") +
            CallText(*last, record.program(last->program));
  }
  return {Activity::Kind::kOutside, since, where};
}

enum class Process { kAlive, kStopped, kDied };

Process ProcessOf(const RecordedRank& rank) {
  if (HasEnded(rank.process, rank.process_start)) return Process::kDied;
  return FactsOfProcess(rank.process).value_or(ProcessFacts{}).stopped ? Process::kStopped : Process::kAlive;
}

const char* Word(Process process, Activity::Kind kind) {
  if (process == Process::kDied) return "died";
  if (process == Process::kStopped) return "stopped";
  switch (kind) {
    case Activity::Kind::kNothing: return "begins";
    case Activity::Kind::kOutside: return "outside";
    case Activity::Kind::kComputes: return "computes";
    case Activity::Kind::kWaits: return "waits";
    case Activity::Kind::kMoves: return "moves";
  }
  return "";
}

std::string Line(const RankRecord& record, Process process, const Activity& activity, int64_t now) {
  const RecordedRank& rank = record.facts;
  char head[200];
  std::snprintf(head, sizeof(head), "  rank %d  process %d on %s  %-8s %8.1f s  ", rank.rank, rank.process, rank.host,
                Word(process, activity.kind), static_cast<double>(std::max<int64_t>(now - activity.since, 0)) * 1e-9);
  return head + activity.where + (record.failure.empty() ? "" : "; failed: " + record.failure) + "\n";
}

// For the ranks of one world.
std::string DescribeWorld(const std::vector<const RankRecord*>& ranks, int64_t now, int64_t long_wait) {
  const RecordedRank& first = ranks[0]->facts;
  std::string text =
      std::string(first.transport) + ", " + std::to_string(first.size) + (first.size == 1 ? " rank\n" : " ranks\n");
  std::string late, gone;     // ranks that do not wait, and those of them that are stopped or dead
  int64_t longest_wait = -1;  // no rank waits
  int next = 0;
  const auto missing = [&](int end) {
    for (; next < end; ++next)
      text += "  rank " + std::to_string(next) + "  has no record here: it is on another host, or has ended\n";
  };
  for (const RankRecord* record : ranks) {
    missing(record->facts.rank);
    next = record->facts.rank + 1;
    const Activity activity = ActivityOf(*record);
    const Process process = ProcessOf(record->facts);
    text += Line(*record, process, activity, now);
    const bool waits = process == Process::kAlive && activity.kind == Activity::Kind::kWaits;
    if (waits) {
      longest_wait = std::max({longest_wait, now - activity.since, int64_t{0}});
      continue;
    }
    const std::string name = "rank " + std::to_string(record->facts.rank);
    late += (late.empty() ? "" : ", ") + name;
    if (process != Process::kAlive) gone += (gone.empty() ? "" : ", ") + name;
  }
  missing(first.size);
  if (longest_wait < long_wait) late = gone;
  if (longest_wait >= 0 && !late.empty()) text += "  late: " + late + "\n";
  return text;
}

bool IsJob(const std::string& folder, std::string_view name, std::string_view wanted) {
  if (name == wanted) return true;
  for (const std::string& file : FilesIn(folder, kRecordSuffix)) {
    const absl::StatusOr<RecordedRank> rank = ReadRank(file);
    if (rank.ok() && (std::to_string(rank->process) == wanted || std::to_string(rank->parent) == wanted)) return true;
  }
  return false;
}

std::string JobText(const std::string& root, const std::string& job) {
  const std::string folder = root + "/" + job;
  const std::vector<RankRecord> records = ReadRecords(folder);
  std::string head = "job " + job + (IsAlive(folder) ? "" : ", which is dead");
  return head + "\n" + Describe(records, RecordNow());
}

}  // namespace

Activity ActivityOf(const RankRecord& record) {
  if (record.steps.empty() && record.transfers.empty())
    return {Activity::Kind::kNothing, record.facts.started, "no call yet"};
  const std::optional<TransferEvent> transfer = UnderWay(record.transfers);
  if (record.steps.empty() || !IsInCall(record.steps.back())) return OutsideCalls(record, transfer);
  const StepEvent& event = record.steps.back();
  const RecordedProgram* const program = record.program(event.program);
  Activity activity{Activity::Kind::kComputes, event.time, CallText(event, program)};
  if (event.kind == StepEvent::Kind::kCompare) activity.where += ", comparing ranks";
  if (event.kind == StepEvent::Kind::kStep)
    activity.where +=
        ", " + (program == nullptr ? "step " + std::to_string(event.step) : program->Describe(event.step));
  if (transfer.has_value() && IsInCollective(event, program)) {
    const bool moves = transfer->phase == TransferEvent::Phase::kMet;
    activity.kind = moves ? Activity::Kind::kMoves : Activity::Kind::kWaits;
    activity.since = std::max(event.time, transfer->time);
  }
  if (IsAtServers(event, program)) activity.kind = Activity::Kind::kWaits;
  return activity;
}

std::string Describe(const std::vector<RankRecord>& records, int64_t now, int64_t long_wait) {
  // A process may have other worlds than the one for training, without activity.
  const auto is_used = [](const RankRecord& record) { return !record.steps.empty(); };
  const bool some_used = std::any_of(records.begin(), records.end(), is_used);
  std::string text;
  for (size_t begin = 0, end = 0; begin < records.size(); begin = end) {
    std::vector<const RankRecord*> world;
    while (end < records.size() && IsSameWorld(records[begin].facts, records[end].facts))
      world.push_back(&records[end++]);
    const bool used =
        std::any_of(world.begin(), world.end(), [&](const RankRecord* record) { return is_used(*record); });
    if (used || !some_used) text += DescribeWorld(world, now, long_wait);
  }
  return text;
}

absl::StatusOr<std::string> StatusText(const std::string& root, std::string_view job) {
  const std::vector<std::string> jobs = Jobs(root);
  if (jobs.empty()) return NotFound() << root << " has no record of a job on this host";
  std::vector<std::string> alive;
  for (const std::string& name : jobs) {
    if (!job.empty() && IsJob(root + "/" + name, name, job)) return JobText(root, name);
    if (IsAlive(root + "/" + name)) alive.push_back(name);
  }
  const std::string& chosen = alive.empty() ? jobs[0] : alive[0];
  std::string others;
  for (const std::string& name : jobs) {
    if (job.empty() && name == chosen) continue;
    const bool lives = std::find(alive.begin(), alive.end(), name) != alive.end();
    others += (others.empty() ? "" : ", ") + name + (lives ? "" : " (dead)");
  }
  if (!job.empty()) return NotFound() << "there is no job or process " << job << " on this host; there are " << others;
  return JobText(root, chosen) + (others.empty() ? "" : "other jobs: " + others + "\n");
}

std::string StallText(const Recorder& recorder) {
  if (recorder.folder().empty()) return "";
  // The caller has waited for the duration LOCKSTEP_STALL.
  return Describe(ReadRecords(recorder.folder()), RecordNow(), /*long_wait=*/0) +
         "  `lockstep status` shows this at any time\n";
}

}  // namespace lockstep
