// One chunk by recursive halving and doubling: p groups, a power of two, take part. Each begins with all of the chunk,
// and swaps with the group p/2 away: one keeps and adds up the lower half, the other the upper one; then with the group
// p/4 away halves of that, until each has one part, whose sum is complete. Then groups swap results, in the other
// order. Groups beyond p take part through the one behind them. See transfer.h for who uses it.

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
  // Elements of the chunk.
  struct Range {
    int64_t begin = 0, end = 0;
    int64_t count() const { return end - begin; }
  };
  // What this group does with another one, turn after turn. Empty ranges are not sent.
  struct Turn {
    int with = -1;  // group
    Stage stage = Stage::kPartial;
    Range send = {}, receive = {};
    MessageBuffer incoming = {};
    std::unique_ptr<LinkRequest> request = {};
  };
  void PlanTurns();
  void PlanSwaps(int place, int pairs);
  Range PartsOf(int begin, int end) const;
  absl::Status ReduceGroup();
  absl::Status SendOf(const Turn& turn);
  absl::Status Take(const Turn& turn);
  absl::Status FinishOwnPart();
  // Begins turns, and goes through those for which nothing is missing.
  absl::StatusOr<bool> Advance();

  int power_ = 1;  // groups that take part
  std::vector<Turn> turns_;
  size_t turn_ = 0;  // the one that is under way
  bool has_begun_ = false;
  bool has_result_ = false;
  Range own_;              // of which this group has the sum first; empty if it takes no part
  MessageBuffer partial_;  // accumulators of the chunk
  MessageBuffer result_;
};

}  // namespace lockstep
