// One rank's view of its group: the consecutive ranks with which it shares memory (all ranks of a world in one process
// or on one host; between hosts, the ranks of one host). It publishes collectives, waits for the other ranks, and
// detects that one of them fails, leaves, dies or does not arrive. Used by one thread at a time, except Fail, failure,
// Notify and AwaitUntouched.

#pragma once

#include <atomic>
#include <cstdint>
#include <functional>
#include <memory>
#include <string>
#include <vector>

#include "absl/functional/function_ref.h"
#include "absl/status/status.h"
#include "absl/time/time.h"
#include "runtime/comm/host/blame_search.h"
#include "runtime/comm/host/control_block.h"
#include "runtime/comm/host/memory.h"
#include "runtime/comm/host/world_groups.h"
#include "runtime/process/process.h"

namespace lockstep {

// The position of a group in its world, and its shared state.
struct GroupConfig {
  std::shared_ptr<void> keep;  // owns the control block's memory; shared by the ranks that are threads of one process
  ControlBlock block;          // with block.ranks() ranks
  int index = 0;               // this rank's index in the group
  int first_rank = 0;          // the number of the group's first rank in the communicator
  bool one_process = false;    // ranks are threads
  std::vector<std::string> hosts;  // of all ranks of the communicator, by rank
  std::vector<int> names = {};     // the ranks' numbers in the world, for messages; empty: the same numbers
  uint32_t world = 0;              // the number of the world among those that the process made in the same way
  // the groups of this rank's communicators in the world; borrowed; null: there are no others
  WorldGroups* world_groups = nullptr;
  std::function<void(const absl::Status& failure)> on_leave;  // called when the rank leaves; may be null
};

class Group {
 public:
  Group(GroupConfig config, absl::Duration timeout);

  int size() const { return config_.block.ranks(); }
  int index() const { return config_.index; }
  int first_rank() const { return config_.first_rank; }
  int world_size() const { return static_cast<int>(config_.hosts.size()); }
  int world_rank() const { return config_.first_rank + config_.index; }
  bool one_process() const { return config_.one_process; }
  bool crowded() const { return crowded_; }  // true if there are more ranks than cores
  // The time that a wait lasts for a live rank that does not arrive. Any thread; waits that have begun see a change.
  absl::Duration timeout() const { return absl::Nanoseconds(timeout_.load(std::memory_order_relaxed)); }
  void set_timeout(absl::Duration timeout) { timeout_.store(absl::ToInt64Nanoseconds(timeout)); }
  PeerMemory& memory() { return memory_; }
  const std::vector<std::string>& hosts() const { return config_.hosts; }
  const std::function<void(const absl::Status&)>& on_leave() const { return config_.on_leave; }
  // Returns the number in the world of a rank of this communicator.
  int NumberInWorld(int rank) const { return config_.names.empty() || rank < 0 ? rank : config_.names[rank]; }
  Slot& slot(uint64_t sequence) const { return config_.block.slot(sequence); }
  Post& post(uint64_t sequence, int index) const { return config_.block.post(sequence, index); }
  int process(int index) const { return config_.block.rank(index).process; }
  void Notify() { config_.block.header().changed.Notify(); }

  // Announces that this rank is present. Call it once, before anything else.
  void Join();
  // Waits until all ranks have joined.
  absl::Status AwaitJoined();
  // Announces that this rank is done and will publish nothing more. Returns true if it is the last rank of the group to
  // leave.
  bool Leave();

  // Waits until slot `sequence` is free, then publishes this rank's description of the collective.
  absl::Status Publish(uint64_t sequence, const OpDescription& description, const MemoryRef& input,
                       const MemoryRef& output, const std::string& label);
  // Waits until all ranks have published `sequence`, and checks that their descriptions agree.
  absl::Status AwaitPosted(uint64_t sequence);
  // Returns the rank of this communicator that published it last. Call it after AwaitPosted.
  int LastToPost(uint64_t sequence) const;
  // Announce that this rank begins, and has done, its share of `sequence`: the chunks that it has taken or that are
  // assigned to it.
  void BeginShare(uint64_t sequence);
  void EndShare(uint64_t sequence);
  // Returns the peers whose share is not done: among those that have begun it, or among all if shares are assigned
  // (`given`).
  std::vector<int> Unfinished(uint64_t sequence, bool given) const;
  // Announces that this rank is done with `sequence`.
  void Retire(uint64_t sequence);

  // Between a BeginWork that returned OK and EndWork, this rank may touch operands, its own and its peers'. Returns an
  // error after a failure, including one that a rank is about to declare.
  absl::Status BeginWork();
  void EndWork();
  // After a failure: waits until neither peers nor other threads of this rank touch operands; they never will
  // afterwards. Does not wait for dead peers, and at most a second for a peer that is stopped. Any thread. In all
  // communicators of this rank's world.
  void AwaitUntouched() const;
  void AwaitUntouchedHere() const;  // in this communicator

  // Waits until `ready`. `missing` returns the indices of the ranks that the wait is for. `what` returns the text for
  // messages; it is called only if the wait is long.
  absl::Status Await(absl::FunctionRef<bool()> ready, absl::FunctionRef<std::vector<int>()> missing,
                     absl::FunctionRef<std::string()> what);

  // Checks from time to time if the group's processes are alive. A dead process is a failure. Any thread of the rank.
  absl::Status CheckAlive(const std::string& what);
  // Checks now if the process of the group's i-th rank is alive.
  absl::Status CheckAlive(int i, const std::string& what);
  // Sets the function that Await calls during long waits, so that other work can progress, and the function that asks
  // ranks of other groups for whom they wait. Call it once, before any Await.
  void OnIdle(std::function<void()> callback, BlameSearch::Ask ask_other_groups);

  // Announce that this rank is alive and waits for a rank of the world; or that it no longer waits.
  void AnnounceWaiting(int rank);
  void AnnounceRunning();
  // The last rank for which this one slept since ForgetSleep, or -1.
  int slept_for() const { return slept_for_; }
  void ForgetSleep() { slept_for_ = -1; }
  // Called from time to time during a wait. `waited` is the duration of the present wait. In a stall, one rank of the
  // world on this host prints once what all of them do.
  void CheckStall(absl::Duration waited, const std::string& what);
  // The rank for which this rank waits, or -1.
  int waits_for() const { return config_.block.rank(index()).waits_for.load(); }
  // Returns for whom a rank of the world waits: from the shared state for this group, by asking for others.
  BlameSearch::Reply Ask(int rank, bool first);
  // The time without a sign of life after which a rank counts as silent.
  absl::Duration grace() const;
  // Declares and returns the failure of a wait that timed out.
  absl::Status TimedOut(const std::vector<BlameSearch::Culprit>& culprits, const std::string& what);

  // Declares the world failed, in this and all other communicators of this rank's world. `culprit` is a rank of this
  // communicator. The first call counts. Any thread. Returns the failure that counts here.
  absl::Status Fail(int culprit, const absl::Status& status);
  // Declares the failure only in this communicator. -1: the culprit is not a rank of this communicator.
  absl::Status FailHere(int culprit, const absl::Status& status);
  // Returns the failure that counts, here or else in the world's communicator, or OK. Any thread.
  absl::Status failure() const;
  // Returns the failure that was declared in this communicator; null if there is none, even if the world's has failed.
  const Failure* failure_here() const;
  void MarkNotified() { config_.block.header().failure.notified.store(1); }
  // Returns the error for two ranks that are not in the same collective.
  absl::Status Disagreement(uint64_t sequence, int rank_a, const OpDescription& a, const std::string& label_a,
                            int rank_b, const OpDescription& b, const std::string& label_b) const;
  // Returns the name of a rank for messages: "rank 3 on host h1".
  std::string Name(int world_rank) const;

  // After a failure: waits a moment until all peers have noticed it, because mpirun ends them when this process ends.
  void AwaitFailureSeen(absl::Duration limit);

 private:
  absl::Status SleepUntil(absl::FunctionRef<bool()> ready, absl::FunctionRef<std::vector<int>()> missing,
                          const std::string& what);
  absl::Status CheckLeft(const std::vector<int>& late, absl::FunctionRef<bool()> ready, const std::string& what);
  absl::Status AwaitWritten() const;
  bool Alive(int index) const;

  GroupConfig config_;
  PeerMemory memory_;
  std::atomic<int64_t> timeout_;  // nanoseconds
  bool crowded_;
  int slept_for_ = -1;
  bool checked_stall_ = false, reports_stall_ = false;  // for the present wait
  std::atomic<int64_t> next_pulse_;                     // time of the next check of processes, in nanoseconds
  std::function<void()> on_idle_ = [] {};
  BlameSearch::Ask ask_other_groups_;
  std::vector<uint32_t> beats_asked_;  // by index: the peer's beats when it was first asked
};

}  // namespace lockstep
