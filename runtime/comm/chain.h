// Collectives between groups of ranks that share no memory. The groups form a pipelined chain in rank order. A
// reduction's partial results travel up the chain, each group adding its ranks in order, and the result travels down;
// so sums are taken in rank order however the ranks are spread over hosts, and, because several chunks are under way at
// once, each host sends and receives every byte twice at most, as in the best of rings. Copies travel from their source
// both ways.
//
// Every rank of a group carries the chunks whose number modulo the group's size is its index, so that each sends its
// own slice. Used by the rank's progress thread.

#pragma once

#include <memory>
#include <string>
#include <vector>

#include "absl/functional/function_ref.h"
#include "absl/status/status.h"
#include "runtime/comm/chunks.h"
#include "runtime/comm/group.h"
#include "runtime/comm/links.h"
#include "runtime/comm/notices.h"

namespace lockstep {

class Chain {
 public:
  // Both are borrowed and must outlive the chain.
  Chain(Group* group, Links* links);

  // Waits until the neighbouring groups have come to collective `sequence` too, and checks that they agree with this
  // one; for what moves no data, such as a barrier, waits until all groups have. To be called by all ranks of the group
  // after AwaitPosted.
  absl::Status AwaitNeighbours(uint64_t sequence, const OpDescription& description, const std::string& label);

  // Does this rank's share of the chunks, and counts them in the slot's `finished`.
  absl::Status Run(uint64_t sequence, const Operands& operands, const Chunks& chunks, const std::string& label);

  // See Notices.
  absl::Status Poll() { return notices_.Poll(); }
  void Leave(bool last_of_group) { notices_.Leave(last_of_group); }

 private:
  // Tests until `done` says so, or fails: on a failure anywhere, or when nothing has happened for the timeout.
  absl::Status Pump(absl::FunctionRef<absl::StatusOr<bool>()> step, absl::FunctionRef<bool()> done,
                    absl::FunctionRef<std::vector<int>()> missing, const std::string& what);
  // What Pump does when nothing has happened for `waited`. `search` lasts until something happens.
  absl::Status WaitedFor(const std::vector<int>& late, absl::Duration waited, std::optional<Search>* search,
                         const std::string& what);
  absl::Status ExchangeWith(const std::vector<int>& send_to, const std::vector<int>& receive_from, int tag,
                            const MessageBuffer& mine, std::vector<MessageBuffer>* theirs, const std::string& what);
  absl::Status AwaitAllGroups(const std::vector<int>& below, const std::vector<int>& above, const MessageBuffer& mine,
                              const std::string& what);

  Group& group_;
  Links& links_;
  Notices notices_;
  const int here_;  // this rank's group
};

}  // namespace lockstep
