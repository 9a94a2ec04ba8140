// Transfers one chunk by recursive halving and doubling: p groups, a power of two, take part. Each begins with the
// whole chunk and exchanges halves with the group at distance p/2: one keeps and adds the lower half, the other the
// upper one. Then it exchanges halves of these with the group at distance p/4, until each has one part with its
// complete sum. Then groups exchange results in reverse order. The remaining groups take part through the next group.
// The users are those of transfer.h.

#pragma once

#include <memory>
#include <vector>

#include "runtime/comm/transfer/transfer.h"

namespace lockstep {

class HalvingTransfer final : public Transfer {
 public:
  HalvingTransfer(const Context& context, uint32_t index, const Chunk& chunk)
      : Transfer(context, Route::kHalving, index, chunk) {}
  absl::Status Begin() override;
  absl::StatusOr<bool> Step() override;
  std::vector<int> Missing() const override;

 private:
  // A range of elements of the chunk.
  struct Range {
    int64_t begin = 0, end = 0;
    int64_t count() const { return end - begin; }
  };
  // One exchange of this group with another. Rounds follow each other. Empty ranges are not sent.
  struct Round {
    int with = -1;  // group
    Stage stage = Stage::kPartial;
    Range send = {}, receive = {};
    MessageBuffer incoming = {};
    std::unique_ptr<LinkRequest> request = {};
  };
  void PlanRounds();
  void PlanSwaps(int place, int pairs);
  Range PartsOf(int begin, int end) const;
  absl::Status ReduceGroup();
  absl::Status SendOf(const Round& round);
  absl::Status Take(const Round& round);
  absl::Status FinishOwnPart();
  // Starts rounds, and continues until one lacks data.
  absl::StatusOr<bool> Advance();

  int power_ = 1;  // the number of groups that take part
  std::vector<Round> rounds_;
  size_t round_ = 0;  // the present round
  bool has_begun_ = false;
  bool has_result_ = false;
  Range own_;              // the range of which this group has the sum first; empty if it does not take part
  MessageBuffer partial_;  // the accumulators of the chunk
  MessageBuffer result_;
};

}  // namespace lockstep
