#include "runtime/record/recorder.h"

#include <fcntl.h>
#include <sys/mman.h>
#include <unistd.h>

#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <filesystem>
#include <fstream>
#include <new>
#include <system_error>
#include <utility>

#include "core/check.h"
#include "runtime/process/process.h"
#include "runtime/record/clock.h"
#include "runtime/record/job_folder.h"
#include "runtime/record/trace_file.h"

namespace lockstep {
namespace {

constexpr size_t kMostProgramText = 16 << 20;  // of a rank; further names are not kept

// Returns the number of the next record of this process, so that all have different names.
uint32_t NextFile() {
  static std::atomic<uint32_t> files{0};
  return files.fetch_add(1);
}

int64_t UnixNow() {
  return std::chrono::duration_cast<std::chrono::nanoseconds>(std::chrono::system_clock::now().time_since_epoch())
      .count();
}

}  // namespace

RecorderOptions RecorderOptions::FromEnvironment(bool job_of_processes) {
  RecorderOptions options;
  options.root = RootOfJobs();
  if (const char* trace = std::getenv("LOCKSTEP_TRACE")) options.trace = trace;
  if (const char* stall = std::getenv("LOCKSTEP_STALL"); stall != nullptr && *stall != '\0') {
    char* end = nullptr;
    const double seconds = std::strtod(stall, &end);
    if (*end != '\0' || !(seconds >= 0)) {
      std::fprintf(stderr, "lockstep: LOCKSTEP_STALL is \"%s\", expected a number of seconds\n", stall);
    } else {
      options.stall = seconds > 0 ? absl::Seconds(seconds) : absl::InfiniteDuration();
    }
  }
  options.keep_failed = job_of_processes;
  return options;
}

std::unique_ptr<Recorder> Recorder::Create(RecordedRank rank, const RecorderOptions& options) {
  rank.process = getpid();
  rank.parent = getppid();
  rank.process_start = FactsOfProcess(rank.process).value_or(ProcessFacts{}).start;
  rank.started = RecordNow();
  rank.started_unix = UnixNow();
  std::unique_ptr<Recorder> recorder(new Recorder(rank, options));
  if (!options.trace.empty()) {
    absl::StatusOr<std::unique_ptr<TraceWriter>> trace = TraceWriter::Create(*recorder, options.trace);
    if (trace.ok()) recorder->trace_ = *std::move(trace);
    else
      std::fprintf(stderr, "lockstep: no trace of rank %d in LOCKSTEP_TRACE=%s: %s\n", rank.rank, options.trace.c_str(),
                   std::string(trace.status().message()).c_str());
  }
  return recorder;
}

Recorder::Recorder(const RecordedRank& rank, const RecorderOptions& options)
    : generation_(ForkGeneration()), options_(options) {
  if (!options.root.empty()) memory_ = MapFile();
  if (memory_ == nullptr) {
    void* const own =
        mmap(nullptr, RecordLayout::kBytes, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
    LOCKSTEP_CHECK(own != MAP_FAILED) << "no memory for what a rank records";
    memory_ = static_cast<std::byte*>(own);
  }
  RecordHeader* const made = new (memory_) RecordHeader;
  made->rank = rank;
  steps_ = {memory_ + RecordLayout::kHeaderBytes, RecordLayout::kSteps};
  transfers_ = {memory_ + RecordLayout::kTransfersBegin, RecordLayout::kTransfers};
  std::atomic_thread_fence(std::memory_order_release);
  std::memcpy(made->magic, RecordHeader::kMagic, sizeof(made->magic));
}

// Returns null if there can be no file, for example in a container without /dev/shm.
std::byte* Recorder::MapFile() {
  const std::string job = ThisJob();
  folder_ = options_.root + "/" + job;
  file_ = folder_ + "/" + std::to_string(getpid()) + "-" + std::to_string(NextFile());
  const std::string path = file_ + kRecordSuffix;
  int file = -1;
  // Tries again, because a rank that ends may remove the folder.
  for (int i = 0; i < 3 && file < 0 && MakeJobFolder(options_.root, job).ok(); ++i)
    file = open(path.c_str(), O_RDWR | O_CREAT | O_TRUNC | O_CLOEXEC, 0600);
  void* memory = MAP_FAILED;
  // Allocates the blocks, because a write to a full file system would otherwise end the process.
  if (file >= 0 && posix_fallocate(file, 0, RecordLayout::kBytes) == 0)
    memory = mmap(nullptr, RecordLayout::kBytes, PROT_READ | PROT_WRITE, MAP_SHARED, file, 0);
  if (file >= 0) close(file);
  if (memory != MAP_FAILED) return static_cast<std::byte*>(memory);
  (void)unlink(path.c_str());
  folder_.clear();
  file_.clear();
  return nullptr;
}

Recorder::~Recorder() {
  if (ForkGeneration() != generation_) {  // all of it belongs to the other process
    (void)trace_.release();
    munmap(memory_, RecordLayout::kBytes);
    return;
  }
  trace_.reset();
  const bool keep = options_.keep_failed && !FailureIn(header()).empty();
  munmap(memory_, RecordLayout::kBytes);
  if (file_.empty() || keep) return;
  (void)unlink((file_ + kRecordSuffix).c_str());
  (void)unlink((file_ + kProgramsSuffix).c_str());
  (void)rmdir(folder_.c_str());  // fails if other files are there
}

bool Recorder::is_on() const { return on_.load(std::memory_order_relaxed) && ForkGeneration() == generation_; }

uint16_t Recorder::AddProgram(RecordedProgram program) {
  const std::lock_guard<std::mutex> lock(naming_);
  program.index = programs_++;
  const std::string text = ToText(program);
  if (programs_text_.size() + text.size() > kMostProgramText) return program.index;
  programs_text_ += text;
  if (!file_.empty() && ForkGeneration() == generation_) {
    std::ofstream(file_ + kProgramsSuffix, std::ios::app) << text;
  }
  return program.index;
}

void Recorder::SetFailure(const absl::Status& failure) {
  RecordHeader& to = header();
  uint32_t none = 0;
  if (!to.failed.compare_exchange_strong(none, 1)) return;
  to.failure[failure.message().copy(to.failure, RecordHeader::kFailureBytes - 1)] = '\0';
  to.failed.store(2, std::memory_order_release);
}

void Recorder::SetRoles(uint16_t program, const std::vector<std::string>& roles) {
  const std::lock_guard<std::mutex> lock(naming_);
  if (roles_of_ == program) return;
  roles_of_ = program;
  roles_ = roles;
}

std::string Recorder::RoleOf(int rank) const {
  const std::lock_guard<std::mutex> lock(naming_);
  return rank >= 0 && static_cast<size_t>(rank) < roles_.size() ? roles_[static_cast<size_t>(rank)] : "";
}

void Recorder::SetClockAhead(int64_t nanoseconds) {
  const std::lock_guard<std::mutex> lock(naming_);
  header().rank.clock_ahead = nanoseconds;
}

RankRecord Recorder::Read() const {
  RankRecord record;
  record.failure = FailureIn(header());
  record.lost = steps_.ReadAll(&record.steps) + transfers_.ReadAll(&record.transfers);
  const std::lock_guard<std::mutex> lock(naming_);
  record.facts = rank();
  record.programs = ParsePrograms(programs_text_);
  return record;
}

}  // namespace lockstep
