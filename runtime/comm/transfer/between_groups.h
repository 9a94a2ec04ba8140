// Collectives between groups of ranks that share no memory, by the routes of route.h, several chunks at once. Every
// rank of a group carries the chunks whose number modulo the group's size is its index, so that each sends its own
// slice. Used by the rank's progress thread.
//
// The first ranks of groups tell each other by a header what they do. Data does not wait for it: the two leave
// together, and a collective is over when both are there. So where ranks disagree operands may have been written before
// that is found.

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
#include "runtime/comm/transfer/notices.h"

namespace lockstep {

class BetweenGroups {
 public:
  // Both are borrowed and must outlive this. `in_rank_order`: reductions have to add in the order of ranks.
  BetweenGroups(Group* group, Links* links, bool in_rank_order, const RoutePolicy& policy);

  // By what routes are chosen from the next plan on.
  void SetPolicy(const RoutePolicy& policy) { options_.policy = policy; }

  // The same on all ranks.
  struct Plan {
    Route route;
    Chunks chunks;
  };
  Plan PlanOf(const Collective& collective) const;

  // Does this rank's share of collective `sequence`: its chunks, counted in the slot's `finished`; and if it is the
  // first of its group, the comparison with the groups with which this one exchanges data, or, for what moves none,
  // such as a barrier, with all, after which the slot's `linked` is 1. To be called after AwaitPosted. A rank that has
  // no chunks needs no addresses in `operands`. Calls `on_met` once, when the other groups are known to have
  // come.
  absl::Status Run(uint64_t sequence, const OpDescription& description, const Operands& operands, const Plan& plan,
                   const std::string& label, absl::FunctionRef<void()> on_met);

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
  // The first ranks of the groups with which this one exchanges something.
  std::vector<int> FirstRanks(Route route) const;
  // Tokens up the chain of groups and down again: then all are there.
  absl::Status PassTokens(const MessageBuffer& mine, const std::string& what);
  absl::Status ExchangeTokens(const std::vector<int>& send_to, const std::vector<int>& receive_from,
                              const MessageBuffer& mine, const std::string& what);

  Group& group_;
  Links& links_;
  Notices notices_;
  const int here_;  // this rank's group
  RouteOptions options_;
};

}  // namespace lockstep
