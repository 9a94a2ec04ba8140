// Messages of one size that some ranks send each other, all at once. Used by the rank's progress thread.

#pragma once

#include <memory>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "runtime/comm/network/links.h"

namespace lockstep {

class Exchange {
 public:
  // Nothing is exchanged.
  Exchange() = default;
  // Sends `mine` to some ranks, and asks for a message of its size from others. Does not wait.
  static absl::StatusOr<Exchange> Begin(Links& links, const std::vector<int>& send_to,
                                        const std::vector<int>& receive_from, int tag, const MessageBuffer& mine);

  // Looks at what is under way: true if something has come or gone.
  absl::StatusOr<bool> Step();
  bool done() const { return flights_.empty(); }
  // With whom something is under way, each rank once.
  std::vector<int> Missing() const;
  // In the order of `receive_from`; filled when it is done.
  const std::vector<MessageBuffer>& received() const { return received_; }

 private:
  struct Flight {
    int with = -1;
    std::unique_ptr<LinkRequest> request;
  };
  std::vector<Flight> flights_;
  std::vector<MessageBuffer> received_;
};

}  // namespace lockstep
