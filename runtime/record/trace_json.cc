#include "runtime/record/trace_json.h"

#include <algorithm>
#include <cstdio>
#include <limits>
#include <map>
#include <set>
#include <utility>

#include "core/text.h"

namespace lockstep {
namespace {

constexpr int kStepTrack = 1, kTransferTrack = 2;

struct Entry {
  int64_t time;
  int64_t duration;  // orders entries of the same time: names, then slices, the longest first, then points
  std::string json;
};
constexpr int64_t kName = std::numeric_limits<int64_t>::max(), kPoint = -1;

// The movement of a collective's data on one rank. Times are nanoseconds of the trace.
struct Movement {
  int64_t begin, end;
  int32_t last;  // the rank of the world that came last, or -1
};
// By communicator and number in it. Communicators have the same numbers on all ranks of a world.
using Movements = std::map<std::pair<uint32_t, uint64_t>, Movement>;

std::string Quoted(const std::string& text) {
  std::string quoted = "\"";
  for (char c : ToValidText(text)) {
    if (c == '"' || c == '\\') quoted += '\\';
    quoted += static_cast<unsigned char>(c) < ' ' ? ' ' : c;
  }
  return quoted + "\"";
}

// Wraps instead of overflowing, because the times of a damaged file may be any numbers.
int64_t Minus(int64_t a, int64_t b) {
  return static_cast<int64_t>(static_cast<uint64_t>(a) - static_cast<uint64_t>(b));
}

// Returns the time in the format's unit.
std::string Microseconds(int64_t nanoseconds) {
  const uint64_t size = nanoseconds < 0 ? -static_cast<uint64_t>(nanoseconds) : static_cast<uint64_t>(nanoseconds);
  char text[40];
  std::snprintf(text, sizeof(text), "%s%llu.%03d", nanoseconds < 0 ? "-" : "",
                static_cast<unsigned long long>(size / 1000), static_cast<int>(size % 1000));
  return text;
}

// The entries of one rank.
class OfRank {
 public:
  OfRank(const RankRecord& record, int process, int64_t begin, std::vector<Entry>* entries, Movements* movements)
      : record_(record), process_(process), begin_(begin), entries_(*entries), movements_(*movements) {}

  void AddAll() {
    const RecordedRank& rank = record_.facts;
    Name("process_name", kStepTrack,
         "rank " + std::to_string(rank.rank) + " on " + rank.host + " (" + rank.transport + ", process " +
             std::to_string(rank.process) + ")");
    Name("thread_name", kStepTrack, "steps");
    for (const uint32_t communicator : Communicators())
      Name("thread_name", kTransferTrack + int64_t{communicator},
           communicator == 0 ? "collectives" : "collectives of communicator " + std::to_string(communicator));
    AddSteps();
    AddTransfers();
  }

 private:
  // Returns 0, the world's own, and those of the recorded collectives.
  std::set<uint32_t> Communicators() const {
    std::set<uint32_t> numbers{0};
    for (const TransferEvent& event : record_.transfers) numbers.insert(event.communicator);
    return numbers;
  }

  int64_t InTrace(int64_t time) const { return Minus(Minus(time, record_.facts.clock_ahead), begin_); }

  void Name(const char* what, int64_t track, const std::string& name) {
    entries_.push_back({0, kName,
                        "{\"ph\":\"M\",\"name\":\"" + std::string(what) + "\",\"pid\":" + std::to_string(process_) +
                            ",\"tid\":" + std::to_string(track) + ",\"args\":{\"name\":" + Quoted(name) + "}}"});
  }

  void AddSlice(int64_t track, int64_t from, int64_t to, const std::string& name, const std::string& args) {
    const int64_t time = InTrace(from);
    entries_.push_back({time, Minus(to, from),
                        "{\"ph\":\"X\",\"ts\":" + Microseconds(time) + ",\"dur\":" + Microseconds(Minus(to, from)) +
                            ",\"pid\":" + std::to_string(process_) + ",\"tid\":" + std::to_string(track) +
                            ",\"name\":" + Quoted(name) + ",\"args\":{" + args + "}}"});
  }

  // Each event lasts until the next of its program. A run is a slice around the slices of its steps.
  void AddSteps() {
    struct Run {
      const StepEvent* call = nullptr;
      const StepEvent* last = nullptr;
    };
    std::map<uint16_t, Run> runs;  // by program: the run in progress
    for (const StepEvent& event : record_.steps) {
      const RecordedProgram* const program = record_.program(event.program);
      Run& run = runs[event.program];
      if (event.kind == StepEvent::Kind::kCall) run = {.call = &event};
      if (run.call == nullptr) continue;  // its beginning is lost
      if (run.last != nullptr) AddStep(*run.last, event.time, program);
      run.last = &event;
      if (event.kind != StepEvent::Kind::kEnd && event.kind != StepEvent::Kind::kFailed) continue;
      AddSlice(kStepTrack, run.call->time, event.time, "@" + (program == nullptr ? "?" : program->name),
               "\"call\":" + std::to_string(event.call) +
                   (event.kind == StepEvent::Kind::kFailed ? ",\"failed\":true" : ""));
      run = {};
    }
  }

  void AddStep(const StepEvent& event, int64_t end, const RecordedProgram* program) {
    std::string name = "inputs and results", source;
    if (event.kind == StepEvent::Kind::kCompare) name = "comparing ranks";
    if (event.kind == StepEvent::Kind::kStep) {
      const bool named =
          program != nullptr && event.step >= 0 && static_cast<size_t>(event.step) < program->steps.size();
      name = event.step == StepEvent::kAllSteps ? "all steps at once" : "step " + std::to_string(event.step);
      if (named) {
        const RecordedStep& step = program->steps[static_cast<size_t>(event.step)];
        name = step.name + (step.label.empty() ? "" : " " + step.label);
        source = step.source;
      }
    }
    AddSlice(kStepTrack, event.time, end, name,
             "\"call\":" + std::to_string(event.call) + ",\"step\":" + std::to_string(event.step) +
                 (source.empty() ? "" : ",\"source\":" + Quoted(source)));
  }

  // A slice lasts from the arrival of all ranks until the results are complete. Slices of a track must not overlap, but
  // collectives of different communicators may move data at the same time, so each communicator has its own track.
  void AddTransfers() {
    std::map<std::pair<uint32_t, uint64_t>, TransferEvent> under_way;
    for (const TransferEvent& event : record_.transfers) {
      TransferEvent& before = under_way[{event.communicator, event.sequence}];
      if (event.phase == TransferEvent::Phase::kMoved && before.phase == TransferEvent::Phase::kMet) {
        AddSlice(kTransferTrack + int64_t{event.communicator}, before.time, event.time, before.label,
                 "\"number\":" + std::to_string(event.sequence) +
                     (before.last < 0 ? "" : ",\"last\":" + std::to_string(before.last)));
        movements_[{event.communicator, event.sequence}] = {InTrace(before.time), InTrace(event.time), before.last};
      }
      if (event.phase == TransferEvent::Phase::kMoved) {
        under_way.erase({event.communicator, event.sequence});
      } else if (event.phase == TransferEvent::Phase::kPosted) {
        before = event;
      } else {  // only the first phase has the label
        before.phase = event.phase;
        before.time = event.time;
        before.last = event.last;
      }
    }
  }

  const RankRecord& record_;
  const int process_;
  const int64_t begin_;
  std::vector<Entry>& entries_;
  Movements& movements_;
};

std::string FlowPoint(const char* phase, uint64_t id, int process, uint32_t communicator, int64_t time) {
  return "{\"ph\":" + std::string(phase) +
         ",\"cat\":\"collective\",\"name\":\"waited for\",\"id\":" + std::to_string(id) +
         ",\"ts\":" + Microseconds(time) + ",\"pid\":" + std::to_string(process) +
         ",\"tid\":" + std::to_string(kTransferTrack + int64_t{communicator}) + "}";
}

// Returns the records of the ranks of a record's world, as their places in `records`, by rank.
std::map<int32_t, size_t> WorldOf(const RankRecord& record, const std::vector<RankRecord>& records) {
  std::map<int32_t, size_t> places;
  for (size_t i = 0; i < records.size(); ++i)
    if (IsSameWorld(records[i].facts, record.facts)) places[records[i].facts.rank] = i;
  return places;
}

// Adds the flows between ranks. The format requires that a flow begins before it ends, and both within a slice, so a
// collective for which the clocks disagree has no flow.
void AddFlows(const std::vector<RankRecord>& records, const std::vector<Movements>& movements,
              std::vector<Entry>* entries) {
  uint64_t id = 0;
  for (size_t i = 0; i < records.size(); ++i) {
    const std::map<int32_t, size_t> world = WorldOf(records[i], records);
    for (const auto& [collective, waited] : movements[i]) {
      const auto last = world.find(waited.last);
      if (last == world.end() || last->second == i) continue;
      const auto found = movements[last->second].find(collective);
      if (found == movements[last->second].end()) continue;
      const int64_t from = found->second.begin, to = std::max(waited.begin, from);
      if (from >= found->second.end || to >= waited.end) continue;
      const uint32_t communicator = collective.first;
      entries->push_back({from, kPoint, FlowPoint("\"s\"", ++id, static_cast<int>(last->second), communicator, from)});
      entries->push_back({to, kPoint, FlowPoint("\"f\",\"bp\":\"e\"", id, static_cast<int>(i), communicator, to)});
    }
  }
}

// Returns the time of the first event, on rank 0's clock.
int64_t BeginOf(const std::vector<RankRecord>& records) {
  int64_t begin = std::numeric_limits<int64_t>::max();
  for (const RankRecord& record : records) {
    if (!record.steps.empty()) begin = std::min(begin, Minus(record.steps[0].time, record.facts.clock_ahead));
    if (!record.transfers.empty()) begin = std::min(begin, Minus(record.transfers[0].time, record.facts.clock_ahead));
  }
  return begin;
}

}  // namespace

std::string TraceJson(const std::vector<RankRecord>& records) {
  const int64_t begin = BeginOf(records);
  std::vector<Entry> entries;
  std::vector<Movements> movements(records.size());
  for (size_t i = 0; i < records.size(); ++i)
    OfRank(records[i], static_cast<int>(i), begin, &entries, &movements[i]).AddAll();
  AddFlows(records, movements, &entries);
  std::stable_sort(entries.begin(), entries.end(), [](const Entry& a, const Entry& b) {
    return a.time != b.time ? a.time < b.time : a.duration > b.duration;
  });
  std::string text = "{\"displayTimeUnit\":\"ms\",\"traceEvents\":[\n";
  for (size_t i = 0; i < entries.size(); ++i) text += entries[i].json + (i + 1 < entries.size() ? ",\n" : "\n");
  return text + "]}\n";
}

}  // namespace lockstep
