#include "runtime/record/trace_file.h"

#include <unistd.h>

#include <algorithm>
#include <atomic>
#include <cerrno>
#include <chrono>
#include <cstring>
#include <filesystem>
#include <fstream>
#include <iterator>
#include <optional>
#include <system_error>
#include <utility>

#include "core/status.h"
#include "runtime/record/job_folder.h"
#include "runtime/record/recorder.h"
#include "runtime/record/trace_json.h"

namespace lockstep {
namespace {

namespace fs = std::filesystem;

constexpr char kSuffix[] = ".events";
constexpr std::chrono::milliseconds kPause(10);  // too short to fill a ring

// The file is a list of blocks: a letter, the number of bytes, the bytes.
enum Block : char {
  kRank = 'R',
  kPrograms = 'P',
  kSteps = 'S',
  kTransfers = 'T',
  kLost = 'L',
  kFailure = 'F',
  kEnd = 'E'
};

template <typename Event>
void Append(const std::string& bytes, std::vector<Event>* events) {
  const size_t before = events->size(), more = bytes.size() / sizeof(Event);
  events->resize(before + more);
  std::memcpy(static_cast<void*>(events->data() + before), bytes.data(), more * sizeof(Event));
}

struct TraceFile {
  RankRecord record;
  bool ended = false;
};

// Reads up to the last complete block, or to the first damaged one. Returns nothing if there is no block of the rank.
std::optional<TraceFile> ReadFile(const std::string& path) {
  std::ifstream file(path, std::ios::binary);
  std::error_code error;
  const uint64_t in_file = fs::file_size(path, error);
  if (error) return std::nullopt;
  TraceFile trace;
  std::string programs, bytes;
  bool has_rank = false;
  char kind = 0;
  uint64_t size = 0;
  while (file.get(kind) && file.read(reinterpret_cast<char*>(&size), sizeof(size))) {
    if (size > in_file) break;  // a damaged size must not allocate memory
    bytes.resize(size);
    if (!file.read(bytes.data(), static_cast<std::streamsize>(size))) break;
    switch (static_cast<Block>(kind)) {
      case kRank:
        if (size != sizeof(RecordedRank)) return std::nullopt;  // of another version
        std::memcpy(&trace.record.facts, bytes.data(), size);
        if (!MakeValid(trace.record.facts)) return std::nullopt;
        has_rank = true;
        break;
      case kPrograms: programs += bytes; break;
      case kSteps: Append(bytes, &trace.record.steps); break;
      case kTransfers: Append(bytes, &trace.record.transfers); break;
      case kLost: std::memcpy(&trace.record.lost, bytes.data(), std::min(size, sizeof(uint64_t))); break;
      case kFailure: trace.record.failure = bytes; break;
      case kEnd: trace.ended = true; break;
    }
  }
  trace.record.programs = ParsePrograms(programs);
  MakeValid(trace.record.transfers);
  if (!has_rank) return std::nullopt;
  return trace;
}

// Returns true if all ranks of all worlds in the folder have ended.
bool AllHaveEnded(const std::string& folder) {
  std::vector<RecordedRank> ended;
  for (const std::string& path : FilesIn(folder, kSuffix)) {
    const std::optional<TraceFile> trace = ReadFile(path);
    if (!trace.has_value() || !trace->ended) return false;
    ended.push_back(trace->record.facts);
  }
  return std::all_of(ended.begin(), ended.end(), [&](const RecordedRank& rank) {
    return std::count_if(ended.begin(), ended.end(),
                         [&](const RecordedRank& other) { return IsSameWorld(rank, other); }) >= rank.size;
  });
}

}  // namespace

absl::StatusOr<std::unique_ptr<TraceWriter>> TraceWriter::Create(const Recorder& recorder, const std::string& folder) {
  const std::string of_job = folder + "/" + ThisJob();
  std::error_code error;
  fs::create_directories(of_job, error);
  if (error) return FailedPrecondition() << "cannot create the folder " << of_job << ": " << error.message();
  const RecordedRank& rank = recorder.rank();
  const std::string path = of_job + "/" + rank.transport + std::to_string(rank.world) + "-rank" +
                           std::to_string(rank.rank) + "-" + std::to_string(rank.process) + kSuffix;
  std::FILE* const file = std::fopen(path.c_str(), "wbe");
  if (file == nullptr) return FailedPrecondition() << path << " cannot be written: " << std::strerror(errno);
  return std::unique_ptr<TraceWriter>(new TraceWriter(recorder, of_job, file));
}

TraceWriter::TraceWriter(const Recorder& recorder, std::string folder, std::FILE* file)
    : recorder_(recorder), folder_(std::move(folder)), file_(file), thread_([this] { Loop(); }) {}

TraceWriter::~TraceWriter() {
  {
    const std::lock_guard<std::mutex> lock(mutex_);
    stop_ = true;
  }
  changed_.notify_all();
  thread_.join();
  TakeNew();
  const std::string failure = FailureIn(recorder_.header());
  if (!failure.empty()) WriteBlock(kFailure, failure.data(), failure.size());
  WriteBlock(kEnd, nullptr, 0);
  failed_ = std::fclose(file_) != 0 || failed_;
  absl::Status merged;
  if (failed_) merged = FailedPrecondition() << "not all of it could be written";
  else if (AllHaveEnded(folder_)) merged = MergeTrace(folder_).status();
  if (!merged.ok()) {
    std::fprintf(stderr, "lockstep: the trace %s of rank %d: %s\n", folder_.c_str(), recorder_.rank().rank,
                 merged.ToString().c_str());
  }
}

void TraceWriter::Loop() {
  std::unique_lock<std::mutex> lock(mutex_);
  while (!changed_.wait_for(lock, kPause, [this] { return stop_; })) {
    lock.unlock();
    TakeNew();
    lock.lock();
  }
}

void TraceWriter::TakeNew() {
  std::vector<StepEvent> steps;
  std::vector<TransferEvent> transfers;
  const uint64_t step = recorder_.steps_.Read(next_step_, &steps);
  const uint64_t transfer = recorder_.transfers_.Read(next_transfer_, &transfers);
  const uint64_t lost = (step - next_step_ - steps.size()) + (transfer - next_transfer_ - transfers.size());
  next_step_ = step;
  next_transfer_ = transfer;
  {
    const std::lock_guard<std::mutex> lock(recorder_.naming_);
    if (std::memcmp(&recorder_.rank(), &written_rank_, sizeof(written_rank_)) != 0) {
      written_rank_ = recorder_.rank();
      WriteBlock(kRank, &written_rank_, sizeof(written_rank_));
    }
    const std::string& programs = recorder_.programs_text_;
    WriteBlock(kPrograms, programs.data() + written_programs_, programs.size() - written_programs_);
    written_programs_ = programs.size();
  }
  WriteBlock(kSteps, steps.data(), steps.size() * sizeof(StepEvent));
  WriteBlock(kTransfers, transfers.data(), transfers.size() * sizeof(TransferEvent));
  if (lost > 0) {
    lost_ += lost;
    WriteBlock(kLost, &lost_, sizeof(lost_));
  }
  failed_ = std::fflush(file_) != 0 || failed_;
}

void TraceWriter::WriteBlock(char kind, const void* data, size_t bytes) {
  if (bytes == 0 && kind != kEnd) return;
  const uint64_t size = bytes;
  const bool written = std::fwrite(&kind, 1, 1, file_) == 1 && std::fwrite(&size, sizeof(size), 1, file_) == 1 &&
                       (bytes == 0 || std::fwrite(data, bytes, 1, file_) == 1);
  failed_ = failed_ || !written;
}

absl::StatusOr<std::vector<RankRecord>> ReadTrace(const std::string& folder) {
  std::vector<RankRecord> records;
  for (const std::string& path : FilesIn(folder, kSuffix)) {
    std::optional<TraceFile> trace = ReadFile(path);
    if (trace.has_value()) records.push_back(std::move(trace->record));
  }
  if (records.empty()) return NotFound() << folder << " has no trace";
  std::stable_sort(records.begin(), records.end(),
                   [](const RankRecord& a, const RankRecord& b) { return IsBefore(a.facts, b.facts); });
  return records;
}

absl::StatusOr<std::string> MergeTrace(const std::string& folder) {
  ASSIGN_OR_RETURN(const std::vector<RankRecord> records, ReadTrace(folder));
  // Two ranks may both be the last, in two processes or in one.
  static std::atomic<int> drafts = 0;
  const std::string path = folder + "/trace.json";
  const std::string draft = path + "." + std::to_string(getpid()) + "." + std::to_string(drafts++);
  std::ofstream file(draft, std::ios::binary);
  file << TraceJson(records);
  file.close();
  std::error_code error;
  if (file.good()) fs::rename(draft, path, error);
  if (!file.good() || error) return FailedPrecondition() << path << " cannot be written";
  return path;
}

absl::StatusOr<std::string> FindTrace(const std::string& folder) {
  if (!FilesIn(folder, kSuffix).empty()) return folder;
  for (const std::string& job : Jobs(folder)) {
    if (!FilesIn(folder + "/" + job, kSuffix).empty()) return folder + "/" + job;
  }
  return NotFound() << folder << " has no trace: start the job with LOCKSTEP_TRACE=" << folder;
}

}  // namespace lockstep
