// Transfers one chunk around the ring of groups: partial results go from the group behind the chunk's owner to the
// owner, then results go around; copies go around from their source. Each group sends only to the next one, and the
// chunks of all owners keep all groups busy. The users are those of transfer.h.

#pragma once

#include "runtime/comm/transfer/transfer.h"

namespace lockstep {

class RingTransfer final : public RelayTransfer {
 public:
  // `owner` is the group that has the result first; for copies, the group of the source.
  RingTransfer(const Context& context, uint32_t index, const Chunk& chunk, int owner);
  absl::Status Begin() override;

 private:
  absl::Status OnPrefix() override;
  absl::Status OnResult() override;
  absl::Status PassResult();

  const int owner_, next_, previous_;  // groups
};

}  // namespace lockstep
