// The file in which a rank records what it does: its facts and the rings of events in one file that it maps, and the
// names of its programs in another beside it. It stays as it is when the rank dies. This is what readers need: other
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

// The begin of the file; the rings follow.
struct RecordHeader {
  static constexpr char kMagic[8] = {'l', 'o', 'c', 'k', 's', 't', 'p', '1'};  // the last is the layout's number
  static constexpr size_t kFailureBytes = 1500;

  char magic[8] = {};  // written last
  RecordedRank rank;
  std::atomic<uint32_t> failed{0};  // 0: no; 1: being written; 2: `failure` is there
  char failure[kFailureBytes] = {};
};

struct RecordLayout {
  static constexpr uint64_t kSteps = 1 << 14, kTransfers = 1 << 11;  // places of the rings
  static constexpr size_t kHeaderBytes = 4096;
  static constexpr size_t kTransfersBegin = kHeaderBytes + Ring<StepEvent>::Bytes(kSteps);
  static constexpr size_t kBytes = kTransfersBegin + Ring<TransferEvent>::Bytes(kTransfers);
  static_assert(sizeof(RecordHeader) <= kHeaderBytes && kTransfersBegin % 64 == 0);
};

// The failure that the header tells of; empty: none.
std::string FailureIn(const RecordHeader& header);

// An error names the file.
absl::StatusOr<RecordedRank> ReadRank(const std::string& file);
absl::StatusOr<RankRecord> ReadRecord(const std::string& file);

// Of all ranks whose files are in the folder and can be read, by rank.
std::vector<RankRecord> ReadRecords(const std::string& folder);

}  // namespace lockstep
