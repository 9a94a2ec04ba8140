#include "runtime/record/trace_json.h"

#include <algorithm>
#include <cstdio>
#include <limits>
#include <map>
#include <utility>

#include "core/text.h"

namespace lockstep {
namespace {

constexpr int kStepTrack = 1, kTransferTrack = 2;

struct Entry {
  int64_t time;
  std::string json;
};

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
  OfRank(const RankRecord& record, int process, int64_t begin, std::vector<Entry>* entries)
      : record_(record), process_(process), begin_(begin), entries_(*entries) {}

  void AddAll() {
    const RecordedRank& rank = record_.facts;
    Name("process_name", 0,
         "rank " + std::to_string(rank.rank) + " on " + rank.host + " (" + rank.transport + ", process " +
             std::to_string(rank.process) + ")");
    Name("thread_name", kStepTrack, "steps");
    Name("thread_name", kTransferTrack, "collectives");
    AddSteps();
    AddTransfers();
  }

 private:
  void Name(const char* what, int track, const std::string& name) {
    entries_.push_back({0, "{\"ph\":\"M\",\"name\":\"" + std::string(what) + "\",\"pid\":" + std::to_string(process_) +
                               ",\"tid\":" + std::to_string(track) + ",\"args\":{\"name\":" + Quoted(name) + "}}"});
  }

  void AddSlice(int64_t track, int64_t from, int64_t to, const std::string& name, const std::string& args) {
    const int64_t time = Minus(Minus(from, record_.facts.clock_ahead), begin_);
    entries_.push_back({time, "{\"ph\":\"X\",\"ts\":" + Microseconds(time) +
                                  ",\"dur\":" + Microseconds(Minus(to, from)) + ",\"pid\":" + std::to_string(process_) +
                                  ",\"tid\":" + std::to_string(track) + ",\"name\":" + Quoted(name) + ",\"args\":{" +
                                  args + "}}"});
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
      }
      if (event.phase == TransferEvent::Phase::kMoved) under_way.erase({event.communicator, event.sequence});
      else before = event;
    }
  }

  const RankRecord& record_;
  const int process_;
  const int64_t begin_;
  std::vector<Entry>& entries_;
};

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
  for (size_t i = 0; i < records.size(); ++i) OfRank(records[i], static_cast<int>(i), begin, &entries).AddAll();
  std::stable_sort(entries.begin(), entries.end(), [](const Entry& a, const Entry& b) { return a.time < b.time; });
  std::string text = "{\"displayTimeUnit\":\"ms\",\"traceEvents\":[\n";
  for (size_t i = 0; i < entries.size(); ++i) text += entries[i].json + (i + 1 < entries.size() ? ",\n" : "\n");
  return text + "]}\n";
}

}  // namespace lockstep
