// Waiting for peers. Meanwhile the rank checks for failures and dead processes, and searches for the culprit if the
// wait takes too long.

#include <algorithm>
#include <cstdio>
#include <optional>

#include "core/status.h"
#include "runtime/comm/host/group.h"
#include "runtime/process/clock.h"
#include "runtime/record/clock.h"
#include "runtime/record/job_status.h"
#include "runtime/record/recorder.h"

namespace lockstep {
namespace {

constexpr absl::Duration kFailureNap = absl::Milliseconds(20);  // between checks for failures
constexpr absl::Duration kPulse = absl::Milliseconds(200);      // between checks of processes
constexpr absl::Duration kMaxGrace = absl::Seconds(1);

}  // namespace

absl::Duration Group::grace() const { return std::min(kMaxGrace, timeout()); }

void Group::AnnounceWaiting(int rank) {
  RankState& state = config_.block.rank(index());
  if (rank >= 0) slept_for_ = rank;
  state.waits_for.store(rank, std::memory_order_relaxed);
  state.beats.fetch_add(1, std::memory_order_release);
}

void Group::AnnounceRunning() { config_.block.rank(index()).waits_for.store(-1, std::memory_order_release); }

BlameSearch::Reply Group::Ask(int rank, bool first) {
  const int i = rank - first_rank();
  if (i < 0 || i >= size()) return ask_other_groups_ ? ask_other_groups_(rank, first) : BlameSearch::Reply{};
  const RankState& state = config_.block.rank(i);
  const uint32_t beats = state.beats.load(std::memory_order_acquire);
  if (first) beats_asked_[i] = beats;
  const int waits_for = state.waits_for.load(std::memory_order_acquire);
  if (waits_for < 0) return {BlameSearch::Reply::Kind::kBusy, -1};
  if (beats == beats_asked_[i]) return {BlameSearch::Reply::Kind::kNone, -1};
  return {BlameSearch::Reply::Kind::kWaits, waits_for};
}

absl::Status Group::Await(absl::FunctionRef<bool()> ready, absl::FunctionRef<std::vector<int>()> missing,
                          absl::FunctionRef<std::string()> what) {
  Spinner spinner(crowded_);
  do {
    if (ready()) return absl::OkStatus();
  } while (spinner.Again());
  absl::Status status = SleepUntil(ready, missing, what());
  AnnounceRunning();
  return status;
}

absl::Status Group::SleepUntil(absl::FunctionRef<bool()> ready, absl::FunctionRef<std::vector<int>()> missing,
                               const std::string& what) {
  Event& changed = config_.block.header().changed;
  const absl::Duration begin = SteadyNow();
  std::optional<BlameSearch> search;
  for (;;) {
    const uint32_t seen = changed.count();
    if (ready()) return absl::OkStatus();
    const std::vector<int> late = missing();
    AnnounceWaiting(late.empty() ? -1 : first_rank() + late[0]);
    on_idle_();
    RETURN_IF_ERROR(failure());
    RETURN_IF_ERROR(CheckAlive(what));
    absl::Status left = CheckLeft(late, ready, what);
    if (!left.ok()) return left;
    const absl::Duration waited = SteadyNow() - begin;
    CheckStall(waited, what);
    // A wait without a late rank is a moment between two steps of a peer, unless it lasts.
    if (!search.has_value() && waited >= timeout() + (late.empty() ? grace() : absl::ZeroDuration())) {
      std::vector<int> ranks;
      for (int i : late) ranks.push_back(first_rank() + i);
      search.emplace(world_rank(), ranks, grace(), [this](int rank, bool first) { return Ask(rank, first); });
    }
    if (search.has_value()) {
      const std::optional<std::vector<BlameSearch::Culprit>> culprits = search->Poll();
      if (culprits.has_value()) return ready() ? absl::OkStatus() : TimedOut(*culprits, what);
    }
    changed.Sleep(seen, kFailureNap);
  }
}

void Group::CheckStall(absl::Duration waited, const std::string& what) {
  const Recorder* const recorder = config_.world_groups == nullptr ? nullptr : config_.world_groups->recorder();
  if (recorder == nullptr || waited < recorder->stall()) {
    checked_stall_ = reports_stall_ = false;
    return;
  }
  // A rank that reports a stall renews the time while it waits. So the others know that it has been reported.
  std::atomic<int64_t>& reported_at = config_.world_groups->world()->config_.block.header().stall_reported_at;
  const int64_t now = RecordNow();
  int64_t before = reported_at.load();
  if (reports_stall_) {
    reported_at.store(now);
  } else if (!checked_stall_) {
    checked_stall_ = true;
    reports_stall_ =
        now - before > absl::ToInt64Nanoseconds(kMaxGrace) && reported_at.compare_exchange_strong(before, now);
    if (!reports_stall_) return;
    const std::string text =
        Name(world_rank()) + " has waited " + absl::FormatDuration(recorder->stall()) + " in " + what;
    std::fprintf(stderr, "lockstep: %s\n%s", text.c_str(), StallText(*recorder).c_str());
  }
}

absl::Status Group::TimedOut(const std::vector<BlameSearch::Culprit>& culprits, const std::string& what) {
  std::string names;
  for (const BlameSearch::Culprit& culprit : culprits) {
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
                  << Name(world_rank()) << " waited " << absl::FormatDuration(timeout()) << " in " << what << " for "
                  << (names.empty() ? "an unknown peer" : names));
}

absl::Status Group::CheckLeft(const std::vector<int>& late, absl::FunctionRef<bool()> ready, const std::string& what) {
  for (int i : late) {
    if (i == index() || config_.block.rank(i).presence.load() != Presence::kLeft) continue;
    if (ready()) break;  // it finished the awaited step before it left
    return Fail(first_rank() + i, ErrorStream(absl::StatusCode::kUnavailable)
                                      << Name(first_rank() + i) << " has left (its communicator is destroyed) while "
                                      << Name(world_rank()) << " waits in " << what);
  }
  return absl::OkStatus();
}

absl::Status Group::CheckAlive(const std::string& what) {
  const int64_t now = absl::ToInt64Nanoseconds(SteadyNow());
  if (one_process() || now < next_pulse_.load(std::memory_order_relaxed)) return absl::OkStatus();
  next_pulse_.store(now + absl::ToInt64Nanoseconds(kPulse), std::memory_order_relaxed);
  for (int i = 0; i < size(); ++i) RETURN_IF_ERROR(CheckAlive(i, what));
  return absl::OkStatus();
}

absl::Status Group::CheckAlive(int i, const std::string& what) {
  const auto is_here = [&] { return config_.block.rank(i).presence.load() == Presence::kHere; };
  if (one_process() || i == index() || !is_here() || Alive(i)) return absl::OkStatus();
  if (!is_here()) return absl::OkStatus();  // it left during the check
  return Fail(first_rank() + i, ErrorStream(absl::StatusCode::kUnavailable)
                                    << Name(first_rank() + i) << " (process " << process(i) << ") died while "
                                    << Name(world_rank()) << " waited in " << what);
}

}  // namespace lockstep
