// Messages of equal size that some ranks send to each other at the same time. Used by the rank's progress thread.

#pragma once

#include <memory>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "runtime/comm/network/links.h"

namespace lockstep {

class Exchange {
 public:
  // An empty exchange.
  Exchange() = default;
  // Sends `mine` to some ranks and starts receiving a message of the same size from others. Does not wait.
  static absl::StatusOr<Exchange> Begin(Links& links, const std::vector<int>& send_to,
                                        const std::vector<int>& receive_from, int tag, const MessageBuffer& mine);

  // Tests the messages in flight. Returns true if one of them completed.
  absl::StatusOr<bool> Step();
  bool done() const { return pending_.empty(); }
  // Returns the ranks with messages in flight, each once.
  std::vector<int> Missing() const;
  // In the order of `receive_from`. Filled when the exchange is done.
  const std::vector<MessageBuffer>& received() const { return received_; }

 private:
  struct PendingRequest {
    int with = -1;
    std::unique_ptr<LinkRequest> request;
  };
  std::vector<PendingRequest> pending_;
  std::vector<MessageBuffer> received_;
};

}  // namespace lockstep
