#include "runtime/record/record_file.h"

#include <fcntl.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstring>
#include <fstream>
#include <iterator>
#include <utility>

#include "core/status.h"
#include "runtime/record/job_folder.h"

namespace lockstep {
namespace {

// A file of another process, mapped for reading.
class Mapped {
 public:
  static absl::StatusOr<Mapped> Open(const std::string& path) {
    const int file = open(path.c_str(), O_RDONLY | O_CLOEXEC);
    if (file < 0) return FailedPrecondition() << path << " cannot be opened: " << std::strerror(errno);
    struct stat facts = {};
    const bool whole = fstat(file, &facts) == 0 && facts.st_size >= static_cast<off_t>(RecordLayout::kBytes);
    void* const memory = whole ? mmap(nullptr, RecordLayout::kBytes, PROT_READ, MAP_SHARED, file, 0) : MAP_FAILED;
    close(file);
    if (memory == MAP_FAILED) return FailedPrecondition() << path << " is not the record of a rank, or is too short";
    Mapped mapped(static_cast<std::byte*>(memory));
    if (std::memcmp(mapped.header().magic, RecordHeader::kMagic, sizeof(RecordHeader::kMagic)) != 0)
      return FailedPrecondition() << path << " is not the record of a rank, or has another version";
    return mapped;
  }
  Mapped(Mapped&& other) noexcept : memory_(std::exchange(other.memory_, nullptr)) {}
  ~Mapped() {
    if (memory_ != nullptr) munmap(memory_, RecordLayout::kBytes);
  }

  const RecordHeader& header() const { return *reinterpret_cast<const RecordHeader*>(memory_); }
  // Only for reading.
  Ring<StepEvent> steps() const { return {memory_ + RecordLayout::kHeaderBytes, RecordLayout::kSteps}; }
  Ring<TransferEvent> transfers() const { return {memory_ + RecordLayout::kTransfersBegin, RecordLayout::kTransfers}; }

 private:
  explicit Mapped(std::byte* memory) : memory_(memory) {}
  std::byte* memory_;
};

absl::StatusOr<RecordedRank> RankOf(const Mapped& mapped, const std::string& path) {
  RecordedRank rank = mapped.header().rank;
  if (!MakeValid(rank)) return FailedPrecondition() << path << " is damaged: it describes no rank";
  return rank;
}

}  // namespace

std::string FailureIn(const RecordHeader& header) {
  if (header.failed.load(std::memory_order_acquire) != 2) return "";
  return {header.failure, strnlen(header.failure, sizeof(header.failure))};
}

absl::StatusOr<RecordedRank> ReadRank(const std::string& file) {
  ASSIGN_OR_RETURN(const Mapped mapped, Mapped::Open(file));
  return RankOf(mapped, file);
}

absl::StatusOr<RankRecord> ReadRecord(const std::string& file) {
  ASSIGN_OR_RETURN(const Mapped mapped, Mapped::Open(file));
  RankRecord record;
  ASSIGN_OR_RETURN(record.facts, RankOf(mapped, file));
  record.failure = FailureIn(mapped.header());
  record.lost = mapped.steps().ReadAll(&record.steps) + mapped.transfers().ReadAll(&record.transfers);
  MakeValid(record.transfers);
  std::ifstream programs(file.substr(0, file.size() - (sizeof(kRecordSuffix) - 1)) + kProgramsSuffix);
  record.programs = ParsePrograms(std::string(std::istreambuf_iterator<char>(programs), {}));
  return record;
}

std::vector<RankRecord> ReadRecords(const std::string& folder) {
  std::vector<RankRecord> records;
  for (const std::string& file : FilesIn(folder, kRecordSuffix)) {
    absl::StatusOr<RankRecord> record = ReadRecord(file);
    if (record.ok()) records.push_back(*std::move(record));  // otherwise the rank has just ended
  }
  std::stable_sort(records.begin(), records.end(),
                   [](const RankRecord& a, const RankRecord& b) { return IsBefore(a.facts, b.facts); });
  return records;
}

}  // namespace lockstep
