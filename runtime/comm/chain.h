// Collectives between groups of ranks that share no memory, by the routes of route.h, several chunks at once. Every
// rank of a group carries the chunks whose number modulo the group's size is its index, so that each sends its own
// slice. Used by the rank's progress thread.

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
#include "runtime/comm/route.h"

namespace lockstep {

class Chain {
 public:
  // Both are borrowed and must outlive the chain. `in_rank_order`: reductions have to add in the order of ranks.
  Chain(Group* group, Links* links, bool in_rank_order);

  // Waits until the groups with which this one exchanges data have come to collective `sequence` too, and checks that
  // they agree with this one; for what moves no data, such as a barrier, waits until all groups have. To be called by
  // all ranks of the group after AwaitPosted.
  absl::Status AwaitGroups(uint64_t sequence, const OpDescription& description, const std::string& label);

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
  absl::Status PassTokens(const std::vector<int>& below, const std::vector<int>& above, const MessageBuffer& mine,
                          const std::string& what);

  Group& group_;
  Links& links_;
  Notices notices_;
  const int here_;  // this rank's group
  const RouteOptions options_;
};

}  // namespace lockstep
