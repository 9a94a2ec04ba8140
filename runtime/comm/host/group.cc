#include "runtime/comm/host/group.h"

#include <unistd.h>

#include <cstring>
#include <utility>

#include "core/status.h"
#include "runtime/comm/collective/description.h"
#include "runtime/process/clock.h"
#include "runtime/process/process.h"
#include "runtime/record/clock.h"
#include "runtime/record/recorder.h"

namespace lockstep {

Group::Group(GroupConfig config, absl::Duration timeout)
    : config_(std::move(config)),
      memory_(config_.one_process, size() == 1),
      timeout_(absl::ToInt64Nanoseconds(timeout)),
      crowded_(size() > AvailableCores()),
      next_pulse_(absl::ToInt64Nanoseconds(SteadyNow())),
      beats_asked_(size()) {}

void Group::OnIdle(std::function<void()> callback, BlameSearch::Ask ask_other_groups) {
  on_idle_ = std::move(callback);
  ask_other_groups_ = std::move(ask_other_groups);
}

void Group::Join() {
  RankState& state = config_.block.rank(index());
  if (!one_process()) {
    state.process = getpid();
    state.process_start = FactsOfProcess(state.process).value_or(ProcessFacts{}).start;
  }
  state.presence.store(Presence::kHere);
  Notify();
}

absl::Status Group::AwaitJoined() {
  auto missing = [this] {
    std::vector<int> absent;
    for (int i = 0; i < size(); ++i) {
      if (config_.block.rank(i).presence.load() == Presence::kAbsent) absent.push_back(i);
    }
    return absent;
  };
  return Await([&] { return missing().empty(); }, missing, [] { return "the start"; });
}

bool Group::Leave() {
  if (config_.on_leave) config_.on_leave(failure());
  config_.block.rank(index()).presence.store(Presence::kLeft);
  Notify();
  for (int i = 0; i < size(); ++i) {
    if (config_.block.rank(i).presence.load() != Presence::kLeft) return false;
  }
  return true;
}

absl::Status Group::Publish(uint64_t sequence, const OpDescription& description, const MemoryRef& input,
                            const MemoryRef& output, const std::string& label) {
  if (sequence >= kSlots) {
    auto missing = [&] {
      std::vector<int> late;
      for (int i = 0; i < size(); ++i) {
        if (config_.block.rank(i).retired.load(std::memory_order_acquire) <= sequence - kSlots) late.push_back(i);
      }
      return late;
    };
    RETURN_IF_ERROR(Await([&] { return missing().empty(); }, missing, [&] { return Describe(description, label); }));
  }
  Post& mine = post(sequence, index());
  mine.description = description;
  mine.input = input;
  mine.output = output;
  CopyText(label, mine.label, kLabelBytes);
  mine.posted_at = RecordNow();
  mine.posted.store(sequence + 1, std::memory_order_release);
  Notify();
  return absl::OkStatus();
}

absl::Status Group::AwaitPosted(uint64_t sequence) {
  auto missing = [&] {
    std::vector<int> late;
    for (int i = 0; i < size(); ++i) {
      if (post(sequence, i).posted.load(std::memory_order_acquire) != sequence + 1) late.push_back(i);
    }
    return late;
  };
  int next = 0;
  auto ready = [&] {
    while (next < size() && post(sequence, next).posted.load(std::memory_order_acquire) == sequence + 1) ++next;
    return next == size();
  };
  const Post& first = post(sequence, 0);
  const Post& mine = post(sequence, index());
  RETURN_IF_ERROR(Await(ready, missing, [&] { return Describe(mine.description, mine.label); }));
  for (int i = 1; i < size(); ++i) {
    const Post& other = post(sequence, i);
    if (other.description == first.description && std::strcmp(other.label, first.label) == 0) continue;
    return Fail(first_rank() + i, Disagreement(sequence, first_rank(), first.description, first.label, first_rank() + i,
                                               other.description, other.label));
  }
  return absl::OkStatus();
}

int Group::LastToPost(uint64_t sequence) const {
  int last = 0;
  for (int i = 1; i < size(); ++i) {
    if (post(sequence, i).posted_at > post(sequence, last).posted_at) last = i;
  }
  return first_rank() + last;
}

absl::Status Group::Disagreement(uint64_t sequence, int rank_a, const OpDescription& a, const std::string& label_a,
                                 int rank_b, const OpDescription& b, const std::string& label_b) const {
  if (rank_b < rank_a) return Disagreement(sequence, rank_b, b, label_b, rank_a, a, label_a);
  const std::string cause = DifferenceOf(NumberInWorld(rank_a), a.evidence, NumberInWorld(rank_b), b.evidence);
  OpDescription b_with_evidence_of_a = b;
  b_with_evidence_of_a.evidence = a.evidence;
  if (a == b_with_evidence_of_a && label_a == label_b) {
    return FailedPrecondition() << Name(rank_a) << " and " << Name(rank_b) << " disagree in collective number "
                                << sequence << ", " << Describe(a, label_a) << ": " << cause;
  }
  return FailedPrecondition() << "the ranks disagree about collective number " << sequence << ": " << Name(rank_a)
                              << " is in " << Describe(a, label_a) << ", " << Name(rank_b) << " in "
                              << Describe(b, label_b) << (cause.empty() ? "" : "; ") << cause;
}

void Group::BeginShare(uint64_t sequence) {
  config_.block.rank(index()).share.store(2 * sequence + 1, std::memory_order_release);
}

void Group::EndShare(uint64_t sequence) {
  config_.block.rank(index()).share.store(2 * sequence + 2, std::memory_order_release);
}

std::vector<int> Group::Unfinished(uint64_t sequence, bool given) const {
  std::vector<int> unfinished;
  for (int i = 0; i < size(); ++i) {
    const RankState& state = config_.block.rank(i);
    if (i == index() || state.presence.load() != Presence::kHere) continue;
    const uint64_t share = state.share.load(std::memory_order_acquire);
    if (given ? share < 2 * sequence + 2 : share == 2 * sequence + 1) unfinished.push_back(i);
  }
  return unfinished;
}

void Group::Retire(uint64_t sequence) {
  config_.block.rank(index()).retired.store(sequence + 1, std::memory_order_release);
}

std::string Group::Name(int world_rank) const {
  const int rank = NumberInWorld(world_rank);
  const Recorder* const recorder = config_.world_groups == nullptr ? nullptr : config_.world_groups->recorder();
  const std::string role = recorder == nullptr ? "" : recorder->RoleOf(rank);
  return "rank " + std::to_string(rank) + (role.empty() ? "" : " (" + role + ")") + " on host " +
         config_.hosts[world_rank];
}

}  // namespace lockstep
