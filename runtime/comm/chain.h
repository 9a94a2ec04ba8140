// Collectives between groups of ranks that share no memory. The groups form a chain in rank order. A reduction's partial
// results travel up the chain, each group adding its ranks in order, and the result travels down; so sums are taken in rank
// order however the ranks are spread over hosts, and, because chunks follow each other like cars of a train, each host sends and
// receives every byte twice at most, as in the best of rings. Copies travel from their source both ways.
//
// Every rank of a group carries the chunks whose number modulo the group's size is its index, so that each sends its own
// slice. Used by the rank's progress thread.

#pragma once

#include <functional>
#include <memory>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "runtime/comm/chunks.h"
#include "runtime/comm/group.h"
#include "runtime/comm/links.h"

namespace lockstep {

class Chain {
 public:
  // Both are borrowed and must outlive the chain.
  Chain(Group* group, Links* links);
  ~Chain();

  // Waits until the neighbouring groups have come to collective `sequence` too, and checks that they agree with this one; for
  // a barrier and an allocation waits until all groups have. To be called by all ranks of the group after AwaitPosted.
  absl::Status AwaitNeighbours(uint64_t sequence, const OpDescription& description, const std::string& label);

  // Does this rank's share of the chunks, and counts them in the slot's `finished`.
  absl::Status Run(uint64_t sequence, const Operands& operands, const Chunks& chunks, const std::string& label);

  // To be called now and then: takes notice of other groups' failures, and tells them of this group's. Returns the failure.
  absl::Status Poll();

  // At the end: tells the other groups that this one is done (if `last_of_group`) or has failed, and gives the messages a moment
  // to leave.
  void Leave(bool last_of_group);

 private:
  struct Car;

  int Owner(uint32_t chunk, int group) const;
  int GroupOf(int rank) const;
  int GroupSize(int group) const;

  // One round of looking at a chunk in flight: true if something happened.
  absl::StatusOr<bool> Step(Car& car, const Operands& operands);
  absl::Status Begin(Car& car, const Operands& operands);
  absl::Status HavePrefix(Car& car, const Operands& operands);
  absl::Status HaveResult(Car& car, const Operands& operands);
  absl::Status SendResult(Car& car);

  // Tests until `done` says so, or fails: on a failure anywhere, or when nothing has happened for the timeout.
  absl::Status Pump(absl::FunctionRef<absl::StatusOr<bool>()> step, absl::FunctionRef<bool()> done,
                    absl::FunctionRef<std::vector<int>()> missing, const std::string& what);
  absl::Status ExchangeWith(const std::vector<int>& send_to, const std::vector<int>& receive_from, int tag,
                            const void* mine, std::vector<std::vector<std::byte>>* theirs, const std::string& what);

  Group& group_;
  Links& links_;
  std::vector<int> begins_;  // first rank of each group, and the world's size
  int here_;                 // this rank's group
  std::vector<int> left_;    // first ranks of groups that are gone
  bool told_ = false;        // the other groups know of the failure
  std::vector<std::unique_ptr<Car>>
      wrecks_;  // chunks in flight at a failure: the transport may still read their buffers
  std::vector<std::unique_ptr<std::vector<std::byte>>> kept_;  // likewise for messages
};

}  // namespace lockstep
