// Transfers one chunk from one rank to another. If both are in one group, it is copied there. Otherwise the source's
// group sends it to the target's, and other groups do nothing. The users are those of transfer.h.

#pragma once

#include <memory>
#include <vector>

#include "runtime/comm/transfer/transfer.h"

namespace lockstep {

class PairTransfer final : public Transfer {
 public:
  PairTransfer(const Context& context, uint32_t index, const Chunk& chunk)
      : Transfer(context, Route::kPair, index, chunk) {}
  absl::Status Begin() override;
  absl::StatusOr<bool> Step() override;
  std::vector<int> Missing() const override;

 private:
  int source_ = 0;  // the source's group
  MessageBuffer data_;
  std::unique_ptr<LinkRequest> receive_;
};

}  // namespace lockstep
