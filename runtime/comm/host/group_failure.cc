// The effects of a failure on a group: the first declaration counts, all ranks see it, and afterwards no one touches
// operands.

#include <sched.h>

#include "absl/time/clock.h"
#include "core/check.h"
#include "core/status.h"
#include "runtime/comm/host/group.h"
#include "runtime/process/clock.h"

namespace lockstep {
namespace {

constexpr absl::Duration kUntouchedLimit = absl::Seconds(1);

}  // namespace

// BeginWork stores `working` and then checks for a failure. A rank that has seen a failure then checks `working`. Since
// all these accesses have one total order, either the worker sees the failure or the other rank sees the worker.
absl::Status Group::BeginWork() {
  config_.block.rank(index()).working.store(1);
  if (config_.block.header().failure.state.load() == 0) return absl::OkStatus();
  EndWork();
  absl::Status failure = AwaitWritten();
  if (failure.ok())
    return ErrorStream(absl::StatusCode::kUnavailable) << "a rank failed, and died before it reported the reason";
  return failure;
}

void Group::EndWork() { config_.block.rank(index()).working.store(0, std::memory_order_release); }

void Group::AwaitUntouched() const {
  AwaitUntouchedHere();
  if (config_.world_groups != nullptr) config_.world_groups->AwaitUntouched();
}

void Group::AwaitUntouchedHere() const {
  const absl::Duration end = SteadyNow() + kUntouchedLimit;
  for (int i = 0; i < size(); ++i) {
    while (config_.block.rank(i).working.load() != 0) {
      if (one_process() || i == index()) {
        sched_yield();
        continue;
      }
      if (SteadyNow() >= end || !Alive(i)) break;
      absl::SleepFor(absl::Milliseconds(1));
    }
  }
}

bool Group::Alive(int i) const {
  const RankState& state = config_.block.rank(i);
  return !HasEnded(state.process, state.process_start);
}

absl::Status Group::Fail(int culprit, const absl::Status& status) {
  absl::Status counts = FailHere(culprit, status);
  if (config_.world_groups != nullptr) config_.world_groups->FailAllExcept(this, NumberInWorld(culprit), counts);
  return counts;
}

absl::Status Group::FailHere(int culprit, const absl::Status& status) {
  LOCKSTEP_CHECK(!status.ok());
  Failure& failure = config_.block.header().failure;
  uint32_t none = 0;
  if (failure.state.compare_exchange_strong(none, 1)) {
    failure.culprit = culprit;
    failure.reporter = world_rank();
    failure.code = static_cast<int32_t>(status.code());
    CopyText(std::string_view(status.message().data(), status.message().size()), failure.message, kMessageBytes);
    failure.state.store(2);
    Notify();
  }
  absl::Status counts = AwaitWritten();
  return counts.ok() ? status : counts;  // OK: the first to declare died while writing
}

// Returns the failure that a rank is about to declare, or OK if this takes too long.
absl::Status Group::AwaitWritten() const {
  for (int i = 0; i < 1000 && config_.block.header().failure.state.load() != 2; ++i) {
    absl::SleepFor(absl::Milliseconds(1));
  }
  return failure();
}

const Failure* Group::failure_here() const {
  const Failure& failure = config_.block.header().failure;
  return failure.state.load(std::memory_order_acquire) == 2 ? &failure : nullptr;
}

absl::Status Group::failure() const {
  const Failure* failure = failure_here();
  if (failure == nullptr) {
    const Group* root = config_.world_groups == nullptr ? nullptr : config_.world_groups->world();
    return root == nullptr || root == this ? absl::OkStatus() : root->failure();
  }
  config_.block.rank(index()).saw_failure.store(1);
  return absl::Status(static_cast<absl::StatusCode>(failure->code), failure->message);
}

void Group::AwaitFailureSeen(absl::Duration limit) {
  const absl::Duration end = SteadyNow() + limit;
  for (int i = 0; i < size(); ++i) {
    RankState& state = config_.block.rank(i);
    while (i != index() && state.presence.load() == Presence::kHere && state.saw_failure.load() == 0 && Alive(i)) {
      if (SteadyNow() >= end) return;
      absl::SleepFor(absl::Milliseconds(2));
    }
  }
}

}  // namespace lockstep
