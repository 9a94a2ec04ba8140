// One chunk that goes around the ring of groups: partial results from the group behind the chunk's owner to the owner,
// results from there once more; what is only copied, from its source. Each group sends to the next alone, and the
// chunks of all owners keep all of them busy. See transfer.h for who uses it.

#pragma once

#include <memory>
#include <vector>

#include "runtime/comm/transfer.h"

namespace lockstep {

class RingTransfer final : public Transfer {
 public:
  // `owner`: the group that has the result first; of what is copied, that of the source.
  RingTransfer(const Context& context, uint32_t index, const Chunk& chunk, int owner);
  absl::Status Begin() override;
  absl::StatusOr<bool> Step() override;
  std::vector<int> Missing() const override;

 private:
  absl::Status HavePrefix();
  absl::Status HaveResult();
  absl::Status PassResult();

  const int owner_, next_, previous_;  // groups
  MessageBuffer partial_;              // the sum of the groups before, then with this one
  MessageBuffer result_;
  std::unique_ptr<LinkRequest> prefix_receive_, result_receive_;
};

}  // namespace lockstep
