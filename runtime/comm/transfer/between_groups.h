// Collectives between groups of ranks that share no memory, by the routes of route.h, several chunks at once. Each rank
// of a group carries the chunks whose number modulo the group's size is its index, so each rank sends its own slice.
// Used by the rank's progress thread.
//
// The first ranks of groups compare their calls by exchanging a header. Data does not wait for it: header and data
// leave together, and a collective is complete when both have arrived. So if ranks disagree, operands may have been
// written before the difference is found.

#pragma once

#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "absl/functional/function_ref.h"
#include "absl/status/status.h"
#include "runtime/comm/collective/chunks.h"
#include "runtime/comm/host/group.h"
#include "runtime/comm/network/exchange.h"
#include "runtime/comm/network/links.h"
#include "runtime/comm/routes/route_choice.h"
#include "runtime/comm/transfer/group_notices.h"

namespace lockstep {

class BetweenGroups {
 public:
  // Both are borrowed and must outlive this object. With `in_rank_order`, reductions must add in rank order.
  BetweenGroups(Group* group, Links* links, bool in_rank_order, const RoutePolicy& policy);

  // Sets the policy for choosing routes, from the next plan on.
  void SetPolicy(const RoutePolicy& policy) { options_.policy = policy; }

  // The plan of a collective, equal on all ranks.
  struct Plan {
    Route route;
    Chunks chunks;
  };
  Plan PlanOf(const Collective& collective) const;

  // Does this rank's share of collective `sequence`: its chunks, counted in the slot's `finished`. The first rank of a
  // group also compares the call with the groups with which this one exchanges data, or with all groups if no data is
  // moved, as in a barrier. Then the slot's `linked` is 1. Call it after AwaitPosted. A rank without chunks needs no
  // addresses in `operands`. Calls `on_met` once, when the other groups are known to have arrived.
  absl::Status Run(uint64_t sequence, const OpDescription& description, const Operands& operands, const Plan& plan,
                   const std::string& label, absl::FunctionRef<void()> on_met);

  // The same as in GroupNotices.
  absl::Status Poll() { return group_notices_.Poll(); }
  void Leave(bool last_of_group) { group_notices_.Leave(last_of_group); }

 private:
  // Calls `step` until `done`. Fails after a failure of any rank, or if there is no progress within the timeout.
  absl::Status Pump(absl::FunctionRef<absl::StatusOr<bool>()> step, absl::FunctionRef<bool()> done,
                    absl::FunctionRef<std::vector<int>()> missing, const std::string& what);
  // Handles a wait in Pump without progress for `waited`. `search` is reset when there is progress.
  absl::Status WaitedFor(const std::vector<int>& late, absl::Duration waited, std::optional<BlameSearch>* search,
                         const std::string& what);
  // Returns the first ranks of the groups with which this one exchanges messages.
  std::vector<int> FirstRanks(Route route) const;
  // Passes tokens up the chain of groups and down again. Then all groups have arrived.
  absl::Status PassTokens(const MessageBuffer& mine, const std::string& what);
  absl::Status ExchangeTokens(const std::vector<int>& send_to, const std::vector<int>& receive_from,
                              const MessageBuffer& mine, const std::string& what);

  Group& group_;
  Links& links_;
  GroupNotices group_notices_;
  const int here_;  // the number of this rank's group
  RouteOptions options_;
};

}  // namespace lockstep
