// One chunk that goes around the ring of groups: partial results from the group behind the chunk's owner to the owner,
// results from there once more; what is only copied, from its source. Each group sends to the next alone, and the
// chunks of all owners keep all of them busy. See transfer.h for who uses it.

#pragma once

#include "runtime/comm/transfer/transfer.h"

namespace lockstep {

class RingTransfer final : public RelayTransfer {
 public:
  // `owner`: the group that has the result first; of what is copied, that of the source.
  RingTransfer(const Context& context, uint32_t index, const Chunk& chunk, int owner);
  absl::Status Begin() override;

 private:
  absl::Status HavePrefix() override;
  absl::Status HaveResult() override;
  absl::Status PassResult();

  const int owner_, next_, previous_;  // groups
};

}  // namespace lockstep
