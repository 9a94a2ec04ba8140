#include "runtime/comm/group.h"

#include <sched.h>
#include <unistd.h>

#include <algorithm>
#include <cstring>
#include <utility>

#include "absl/time/clock.h"
#include "core/check.h"
#include "core/status.h"
#include "runtime/comm/clock.h"
#include "runtime/comm/describe.h"

namespace lockstep {
namespace {

constexpr absl::Duration kNap = absl::Milliseconds(20);     // between looks at failures
constexpr absl::Duration kPulse = absl::Milliseconds(200);  // between looks at processes
constexpr absl::Duration kMaxGrace = absl::Seconds(1);
constexpr absl::Duration kUntouchedLimit = absl::Seconds(1);

int AvailableCores() {
  cpu_set_t set;
  if (sched_getaffinity(0, sizeof(set), &set) != 0) return 1;
  return CPU_COUNT(&set);
}

}  // namespace

Group::Group(GroupPlace place, absl::Duration timeout)
    : place_(std::move(place)),
      memory_(place_.one_process),
      timeout_(timeout),
      crowded_(size() > AvailableCores()),
      next_pulse_(SteadyNow() + kPulse),
      beats_asked_(size()) {}

void Group::OnIdle(std::function<void()> callback, Search::Ask ask_other_groups) {
  on_idle_ = std::move(callback);
  ask_other_groups_ = std::move(ask_other_groups);
}

absl::Duration Group::grace() const { return std::min(kMaxGrace, timeout_); }

void Group::Join() {
  RankState& state = place_.block.rank(index());
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
      if (place_.block.rank(i).presence.load() == Presence::kAbsent) absent.push_back(i);
    }
    return absent;
  };
  return Await([&] { return missing().empty(); }, missing, "the start");
}

bool Group::Leave() {
  if (place_.on_leave) place_.on_leave(failure());
  place_.block.rank(index()).presence.store(Presence::kLeft);
  Notify();
  for (int i = 0; i < size(); ++i) {
    if (place_.block.rank(i).presence.load() != Presence::kLeft) return false;
  }
  return true;
}

absl::Status Group::Publish(uint64_t sequence, const OpDescription& description, const MemoryRef& input,
                            const MemoryRef& output, const std::string& label) {
  if (sequence >= kSlots) {
    auto missing = [&] {
      std::vector<int> late;
      for (int i = 0; i < size(); ++i) {
        if (place_.block.rank(i).retired.load(std::memory_order_acquire) <= sequence - kSlots) late.push_back(i);
      }
      return late;
    };
    RETURN_IF_ERROR(Await([&] { return missing().empty(); }, missing, Describe(description, label)));
  }
  Post& mine = post(sequence, index());
  mine.description = description;
  mine.input = input;
  mine.output = output;
  CopyText(label, mine.label, kLabelBytes);
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
  RETURN_IF_ERROR(Await(ready, missing, Describe(mine.description, mine.label)));
  for (int i = 1; i < size(); ++i) {
    const Post& other = post(sequence, i);
    if (other.description == first.description && std::strcmp(other.label, first.label) == 0) continue;
    return Fail(first_rank() + i, Disagreement(sequence, first_rank(), first.description, first.label, first_rank() + i,
                                               other.description, other.label));
  }
  return absl::OkStatus();
}

absl::Status Group::Disagreement(uint64_t sequence, int rank_a, const OpDescription& a, const std::string& label_a,
                                 int rank_b, const OpDescription& b, const std::string& label_b) const {
  if (rank_b < rank_a) return Disagreement(sequence, rank_b, b, label_b, rank_a, a, label_a);
  const std::string cause = DifferenceOf(a.evidence, b.evidence);
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
  place_.block.rank(index()).share.store(2 * sequence + 1, std::memory_order_release);
}

void Group::EndShare(uint64_t sequence) {
  place_.block.rank(index()).share.store(2 * sequence + 2, std::memory_order_release);
}

std::vector<int> Group::Unfinished(uint64_t sequence, bool given) const {
  std::vector<int> unfinished;
  for (int i = 0; i < size(); ++i) {
    const RankState& state = place_.block.rank(i);
    if (i == index() || state.presence.load() != Presence::kHere) continue;
    const uint64_t share = state.share.load(std::memory_order_acquire);
    if (given ? share < 2 * sequence + 2 : share == 2 * sequence + 1) unfinished.push_back(i);
  }
  return unfinished;
}

void Group::Retire(uint64_t sequence) {
  place_.block.rank(index()).retired.store(sequence + 1, std::memory_order_release);
}

// BeginWork stores `working` and then looks for a failure; whoever has seen a failure then looks at `working`. All of
// it in one total order, so either the worker sees the failure or the other sees the worker.
absl::Status Group::BeginWork() {
  place_.block.rank(index()).working.store(1);
  if (place_.block.header().failure.state.load() == 0) return absl::OkStatus();
  EndWork();
  absl::Status failure = AwaitWritten();
  if (failure.ok()) return ErrorStream(absl::StatusCode::kUnavailable) << "a rank failed, and died while it said why";
  return failure;
}

void Group::EndWork() { place_.block.rank(index()).working.store(0, std::memory_order_release); }

void Group::AwaitUntouched() const {
  AwaitUntouchedHere();
  if (place_.family != nullptr) place_.family->AwaitUntouched();
}

void Group::AwaitUntouchedHere() const {
  const absl::Duration end = SteadyNow() + kUntouchedLimit;
  for (int i = 0; i < size(); ++i) {
    while (place_.block.rank(i).working.load() != 0) {
      if (one_process() || i == index()) {
        sched_yield();
        continue;
      }
      if (SteadyNow() >= end || !Alive(i)) break;
      absl::SleepFor(absl::Milliseconds(1));
    }
  }
}

void Group::SayWaiting(int rank) {
  RankState& state = place_.block.rank(index());
  state.waits_for.store(rank, std::memory_order_relaxed);
  state.beats.fetch_add(1, std::memory_order_release);
}

void Group::SayGoingOn() { place_.block.rank(index()).waits_for.store(-1, std::memory_order_release); }

Search::Reply Group::Ask(int rank, bool first) {
  const int i = rank - first_rank();
  if (i < 0 || i >= size()) return ask_other_groups_ ? ask_other_groups_(rank, first) : Search::Reply{};
  const RankState& state = place_.block.rank(i);
  const uint32_t beats = state.beats.load(std::memory_order_acquire);
  if (first) beats_asked_[i] = beats;
  const int waits_for = state.waits_for.load(std::memory_order_acquire);
  if (waits_for < 0) return {Search::Reply::Kind::kBusy, -1};
  if (beats == beats_asked_[i]) return {Search::Reply::Kind::kNone, -1};
  return {Search::Reply::Kind::kWaits, waits_for};
}

absl::Status Group::Await(absl::FunctionRef<bool()> ready, absl::FunctionRef<std::vector<int>()> missing,
                          const std::string& what) {
  Spinner spinner(crowded_);
  do {
    if (ready()) return absl::OkStatus();
  } while (spinner.Again());
  absl::Status status = SleepUntil(ready, missing, what);
  SayGoingOn();
  return status;
}

absl::Status Group::SleepUntil(absl::FunctionRef<bool()> ready, absl::FunctionRef<std::vector<int>()> missing,
                               const std::string& what) {
  Event& changed = place_.block.header().changed;
  const absl::Duration begin = SteadyNow();
  std::optional<Search> search;
  for (;;) {
    const uint32_t seen = changed.count();
    if (ready()) return absl::OkStatus();
    const std::vector<int> late = missing();
    SayWaiting(late.empty() ? -1 : first_rank() + late[0]);
    on_idle_();
    RETURN_IF_ERROR(failure());
    RETURN_IF_ERROR(CheckAlive(what));
    absl::Status left = CheckLeft(late, ready, what);
    if (!left.ok()) return left;
    const absl::Duration waited = SteadyNow() - begin;
    // A wait for nobody is a moment between two steps of a peer, unless it lasts.
    if (!search.has_value() && waited >= timeout_ + (late.empty() ? grace() : absl::ZeroDuration())) {
      std::vector<int> ranks;
      for (int i : late) ranks.push_back(first_rank() + i);
      search.emplace(world_rank(), ranks, grace(), [this](int rank, bool first) { return Ask(rank, first); });
    }
    if (search.has_value()) {
      const std::optional<std::vector<Search::Culprit>> culprits = search->Poll();
      if (culprits.has_value()) return ready() ? absl::OkStatus() : TimedOut(*culprits, what);
    }
    changed.Sleep(seen, kNap);
  }
}

absl::Status Group::TimedOut(const std::vector<Search::Culprit>& culprits, const std::string& what) {
  std::string names;
  for (const Search::Culprit& culprit : culprits) {
    const int i = culprit.rank - first_rank();
    const bool is_peer = !one_process() && i >= 0 && i < size();
    const bool stopped = is_peer && FactsOfProcess(process(i)).value_or(ProcessFacts{}).stopped;
    names += (names.empty() ? "" : "; ") + Name(culprit.rank) + ": " +
             (stopped          ? "stopped by a signal"
              : culprit.silent ? "it gives no sign of life"
                               : "alive, but not arrived");
  }
  return Fail(culprits.empty() ? world_rank() : culprits[0].rank,
              ErrorStream(absl::StatusCode::kDeadlineExceeded)
                  << Name(world_rank()) << " waited " << absl::FormatDuration(timeout_) << " in " << what << " for "
                  << (names.empty() ? "a peer that cannot be told" : names));
}

absl::Status Group::CheckLeft(const std::vector<int>& late, absl::FunctionRef<bool()> ready, const std::string& what) {
  for (int i : late) {
    if (i == index() || place_.block.rank(i).presence.load() != Presence::kLeft) continue;
    if (ready()) break;  // it did what we wait for, and left then
    return Fail(first_rank() + i, ErrorStream(absl::StatusCode::kUnavailable)
                                      << Name(first_rank() + i) << " has left (its communicator is destroyed) while "
                                      << Name(world_rank()) << " waits in " << what);
  }
  return absl::OkStatus();
}

absl::Status Group::CheckAlive(const std::string& what) {
  const absl::Duration now = SteadyNow();
  if (one_process() || now < next_pulse_) return absl::OkStatus();
  next_pulse_ = now + kPulse;
  for (int i = 0; i < size(); ++i) {
    if (i == index() || place_.block.rank(i).presence.load() != Presence::kHere || Alive(i)) continue;
    if (place_.block.rank(i).presence.load() != Presence::kHere) continue;  // it left while we looked
    return Fail(first_rank() + i, ErrorStream(absl::StatusCode::kUnavailable)
                                      << Name(first_rank() + i) << " (process " << process(i) << ") died while "
                                      << Name(world_rank()) << " waited in " << what);
  }
  return absl::OkStatus();
}

bool Group::Alive(int i) const {
  const RankState& state = place_.block.rank(i);
  return !HasEnded(state.process, state.process_start);
}

absl::Status Group::Fail(int culprit, const absl::Status& status) {
  absl::Status counts = FailHere(culprit, status);
  if (place_.family != nullptr) place_.family->Spread(this, NumberInWorld(culprit), counts);
  return counts;
}

absl::Status Group::FailHere(int culprit, const absl::Status& status) {
  LOCKSTEP_CHECK(!status.ok());
  Failure& failure = place_.block.header().failure;
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
  return counts.ok() ? status : counts;  // OK: whoever was first died while it wrote
}

// The failure that somebody is about to declare, or OK if it takes too long.
absl::Status Group::AwaitWritten() const {
  for (int i = 0; i < 1000 && place_.block.header().failure.state.load() != 2; ++i) {
    absl::SleepFor(absl::Milliseconds(1));
  }
  return failure();
}

absl::Status Group::failure() const {
  const Failure& failure = place_.block.header().failure;
  if (failure.state.load(std::memory_order_acquire) != 2) {
    const Group* root = place_.family == nullptr ? nullptr : place_.family->root();
    return root == nullptr || root == this ? absl::OkStatus() : root->failure();
  }
  place_.block.rank(index()).saw_failure.store(1);
  return absl::Status(static_cast<absl::StatusCode>(failure.code), failure.message);
}

void Group::AwaitFailureSeen(absl::Duration limit) {
  const absl::Duration end = SteadyNow() + limit;
  for (int i = 0; i < size(); ++i) {
    RankState& state = place_.block.rank(i);
    while (i != index() && state.presence.load() == Presence::kHere && state.saw_failure.load() == 0 && Alive(i)) {
      if (SteadyNow() >= end) return;
      absl::SleepFor(absl::Milliseconds(2));
    }
  }
}

std::string Group::Name(int world_rank) const {
  return "rank " + std::to_string(NumberInWorld(world_rank)) + " on host " + place_.hosts[world_rank];
}

}  // namespace lockstep
