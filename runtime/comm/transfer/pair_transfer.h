// One chunk that a rank has for another rank alone. Where both are of one group it is copied there; else the source's
// group sends it to the target's; the other groups have nothing to do. See transfer.h for who uses it.

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
  int source_ = 0;  // group
  MessageBuffer data_;
  std::unique_ptr<LinkRequest> receive_;
};

}  // namespace lockstep
