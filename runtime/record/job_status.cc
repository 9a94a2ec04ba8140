#include "runtime/record/job_status.h"

#include <algorithm>
#include <cstdio>
#include <map>
#include <optional>
#include <utility>

#include "absl/types/span.h"
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

RankStatus::Process ProcessOf(const RecordedRank& rank) {
  if (HasEnded(rank.process, rank.process_start)) return RankStatus::Process::kDied;
  return FactsOfProcess(rank.process).value_or(ProcessFacts{}).stopped ? RankStatus::Process::kStopped
                                                                       : RankStatus::Process::kAlive;
}

std::string NameOf(const RankStatus& rank) { return "rank " + std::to_string(rank.record->facts.rank); }

std::string Line(const RankStatus& status, int64_t now) {
  const RecordedRank& rank = status.record->facts;
  const std::string& failure = status.record->failure;
  char head[200];
  std::snprintf(head, sizeof(head), "  rank %d  process %d on %s  %-8s %8.1f s  ", rank.rank, rank.process, rank.host,
                status.state(), static_cast<double>(std::max<int64_t>(now - status.activity.since, 0)) * 1e-9);
  return head + status.activity.where + (failure.empty() ? "" : "; failed: " + failure) + "\n";
}

std::vector<RankStatus> StatusOfWorld(absl::Span<const RankRecord> world, int64_t now, int64_t long_wait) {
  std::vector<RankStatus> ranks;
  int64_t longest_wait = -1;  // no rank waits
  for (const RankRecord& record : world) {
    ranks.push_back({&record, ActivityOf(record), ProcessOf(record.facts)});
    if (ranks.back().waits()) longest_wait = std::max({longest_wait, now - ranks.back().activity.since, int64_t{0}});
  }
  for (RankStatus& rank : ranks) {
    const bool gone = rank.process != RankStatus::Process::kAlive;
    rank.is_late = longest_wait >= 0 && !rank.waits() && (gone || longest_wait >= long_wait);
  }
  return ranks;
}

// For the ranks of one world.
std::string DescribeWorld(absl::Span<const RankStatus> ranks, int64_t now) {
  const RecordedRank& first = ranks[0].record->facts;
  std::string text =
      std::string(first.transport) + ", " + std::to_string(first.size) + (first.size == 1 ? " rank\n" : " ranks\n");
  std::string late;
  int next = 0;
  const auto missing = [&](int end) {
    for (; next < end; ++next)
      text += "  rank " + std::to_string(next) + "  has no record here: it is on another host, or has ended\n";
  };
  for (const RankStatus& rank : ranks) {
    missing(rank.record->facts.rank);
    next = rank.record->facts.rank + 1;
    text += Line(rank, now);
    if (rank.is_late) late += (late.empty() ? "" : ", ") + NameOf(rank);
  }
  missing(first.size);
  return text + (late.empty() ? "" : "  late: " + late + "\n");
}

bool IsJob(const std::string& folder, std::string_view name, std::string_view wanted) {
  if (name == wanted) return true;
  for (const std::string& file : FilesIn(folder, kRecordSuffix)) {
    const absl::StatusOr<RecordedRank> rank = ReadRank(file);
    if (rank.ok() && (std::to_string(rank->process) == wanted || std::to_string(rank->parent) == wanted)) return true;
  }
  return false;
}

// Returns the names of the other jobs than `job`.
std::string JobsExcept(const std::string& job, const std::string& root) {
  std::string names;
  for (const std::string& name : Jobs(root)) {
    if (name == job) continue;
    names += (names.empty() ? "" : ", ") + name + (IsAlive(root + "/" + name) ? "" : " (dead)");
  }
  return names;
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

const char* RankStatus::state() const {
  if (process == Process::kDied) return "died";
  if (process == Process::kStopped) return "stopped";
  switch (activity.kind) {
    case Activity::Kind::kNothing: return "begins";
    case Activity::Kind::kOutside: return "outside";
    case Activity::Kind::kComputes: return "computes";
    case Activity::Kind::kWaits: return "waits";
    case Activity::Kind::kMoves: return "moves";
  }
  return "";
}

std::vector<RankStatus> StatusOf(const std::vector<RankRecord>& records, int64_t now, int64_t long_wait) {
  // A process may have other worlds than the one for training, without activity.
  const auto is_used = [](const RankRecord& record) { return !record.steps.empty(); };
  const bool some_used = std::any_of(records.begin(), records.end(), is_used);
  std::vector<RankStatus> statuses;
  for (size_t begin = 0, end = 0; begin < records.size(); begin = end) {
    while (end < records.size() && IsSameWorld(records[begin].facts, records[end].facts)) ++end;
    const absl::Span<const RankRecord> world(&records[begin], end - begin);
    if (some_used && !std::any_of(world.begin(), world.end(), is_used)) continue;
    for (RankStatus& rank : StatusOfWorld(world, now, long_wait)) statuses.push_back(std::move(rank));
  }
  return statuses;
}

std::string Describe(const std::vector<RankRecord>& records, int64_t now, int64_t long_wait) {
  const std::vector<RankStatus> statuses = StatusOf(records, now, long_wait);
  std::string text;
  for (size_t begin = 0, end = 0; begin < statuses.size(); begin = end) {
    while (end < statuses.size() && IsSameWorld(statuses[begin].record->facts, statuses[end].record->facts)) ++end;
    text += DescribeWorld(absl::MakeConstSpan(statuses).subspan(begin, end - begin), now);
  }
  return text;
}

absl::StatusOr<std::string> FindJob(const std::string& root, std::string_view job) {
  const std::vector<std::string> jobs = Jobs(root);
  if (jobs.empty()) return NotFound() << root << " has no record of a job on this host";
  for (const std::string& name : jobs)
    if (job.empty() ? IsAlive(root + "/" + name) : IsJob(root + "/" + name, name, job)) return name;
  if (job.empty()) return jobs[0];
  return NotFound() << "there is no job or process " << job << " on this host; there are " << JobsExcept("", root);
}

absl::StatusOr<std::string> StatusText(const std::string& root, std::string_view job) {
  ASSIGN_OR_RETURN(const std::string found, FindJob(root, job));
  const std::string others = job.empty() ? JobsExcept(found, root) : "";
  return JobText(root, found) + (others.empty() ? "" : "other jobs: " + others + "\n");
}

std::string StallText(const Recorder& recorder) {
  if (recorder.folder().empty()) return "";
  // The caller has waited for the duration LOCKSTEP_STALL.
  return Describe(ReadRecords(recorder.folder()), RecordNow(), /*long_wait=*/0) +
         "  `lockstep status` shows this at any time\n";
}

}  // namespace lockstep
