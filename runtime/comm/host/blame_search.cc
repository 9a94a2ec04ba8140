#include "runtime/comm/host/blame_search.h"

#include <algorithm>
#include <utility>

#include "runtime/process/clock.h"

namespace lockstep {

BlameSearch::BlameSearch(int self, const std::vector<int>& late, absl::Duration grace, Ask ask)
    : self_(self), grace_(grace), ask_(std::move(ask)) {
  for (int rank : late) trails_.push_back({.ranks = {rank}, .since = {}, .end = {}});
}

std::optional<std::vector<BlameSearch::Culprit>> BlameSearch::Poll() {
  for (Trail& trail : trails_) {
    if (!trail.end.has_value()) Follow(trail);
  }
  const auto is_open = [](const Trail& trail) { return !trail.end.has_value(); };
  if (std::any_of(trails_.begin(), trails_.end(), is_open)) return std::nullopt;
  // Ranks that wait for each other wait for the same third rank, if there is one.
  const bool all_circle =
      std::all_of(trails_.begin(), trails_.end(), [](const Trail& trail) { return trail.is_circle; });
  std::vector<Culprit> culprits;
  for (const Trail& trail : trails_) {
    if (trail.is_circle && !all_circle) continue;
    if (std::find(culprits.begin(), culprits.end(), *trail.end) == culprits.end()) culprits.push_back(*trail.end);
  }
  return culprits;
}

void BlameSearch::Follow(Trail& trail) {
  const absl::Duration now = SteadyNow();
  const int rank = trail.ranks.back();
  const Reply reply = ask_(rank, !trail.asked);
  if (!trail.asked) trail.since = now;
  trail.asked = true;
  if (reply.kind != Reply::Kind::kWaits) {
    if (now - trail.since >= grace_) trail.end = Culprit{rank, reply.kind == Reply::Kind::kNone};
    return;
  }
  const bool circle =
      reply.rank == self_ || std::find(trail.ranks.begin(), trail.ranks.end(), reply.rank) != trail.ranks.end();
  if (circle) {
    // Waiting ranks do not answer so for long: one of them has just been served, or messages are lost.
    if (now - trail.since < grace_) return;
    trail.end = Culprit{trail.ranks.front(), false};
    trail.is_circle = true;
    return;
  }
  trail.ranks.push_back(reply.rank);
  trail.asked = false;
}

}  // namespace lockstep
