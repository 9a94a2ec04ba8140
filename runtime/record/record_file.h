// The files in which a rank records its progress: one, which it maps, with its facts and the rings of events; and
// another beside it with the names of its programs. They remain when the rank dies. This header is for readers: other
// ranks, and `lockstep status`. Any thread.

#pragma once

#include <atomic>
#include <cstddef>
#include <cstdint>
#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "runtime/record/record.h"
#include "runtime/record/ring.h"

namespace lockstep {

inline constexpr char kRecordSuffix[] = ".record";
inline constexpr char kProgramsSuffix[] = ".programs";  // instead of kRecordSuffix

// The beginning of the file. The rings follow it.
struct RecordHeader {
  // the last character is the number of the layout
  static constexpr char kMagic[8] = {'l', 'o', 'c', 'k', 's', 't', 'p', '1'};
  static constexpr size_t kFailureBytes = 1500;

  char magic[8] = {};  // written last
  RecordedRank rank;
  std::atomic<uint32_t> failed{0};  // 0: no; 1: being written; 2: `failure` is complete
  char failure[kFailureBytes] = {};
};

struct RecordLayout {
  static constexpr uint64_t kSteps = 1 << 14, kTransfers = 1 << 11;  // the sizes of the rings
  static constexpr size_t kHeaderBytes = 4096;
  static constexpr size_t kTransfersBegin = kHeaderBytes + Ring<StepEvent>::Bytes(kSteps);
  static constexpr size_t kBytes = kTransfersBegin + Ring<TransferEvent>::Bytes(kTransfers);
  static_assert(sizeof(RecordHeader) <= kHeaderBytes && kTransfersBegin % 64 == 0);
};

// Returns the failure in the header; empty: none.
std::string FailureIn(const RecordHeader& header);

// An error names the file.
absl::StatusOr<RecordedRank> ReadRank(const std::string& file);
absl::StatusOr<RankRecord> ReadRecord(const std::string& file);

// Reads the records of all ranks whose files are in the folder and readable, by rank.
std::vector<RankRecord> ReadRecords(const std::string& folder);

}  // namespace lockstep
