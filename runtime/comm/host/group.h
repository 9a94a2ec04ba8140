// One rank's view of its group: the ranks next to it in rank order with which it shares memory (all ranks of a world in
// one process or on one host; the ranks of one host between hosts). It publishes collectives, waits for the others, and
// notices when one of them fails, leaves, dies or does not come. Used by one thread at a time, except Fail, failure,
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
#include "runtime/comm/host/control_block.h"
#include "runtime/comm/host/family.h"
#include "runtime/comm/host/memory.h"
#include "runtime/comm/host/search.h"
#include "runtime/process/process.h"

namespace lockstep {

// Where a group stands in its world, and how to reach its shared state.
struct GroupPlace {
  std::shared_ptr<void> keep;  // owns the control block's memory; shared by the ranks that are threads of one process
  ControlBlock block;          // of block.ranks() ranks
  int index = 0;               // of this rank in the group
  int first_rank = 0;          // the world's rank of the group's first
  bool one_process = false;    // ranks are threads
  std::vector<std::string> hosts;  // of all ranks of the communicator, by rank
  std::vector<int> names = {};     // the ranks that they are in the world, for messages; empty: the same numbers
  uint32_t world = 0;              // the number of the world among those that the process made in the same way
  Family* family = nullptr;        // of this rank's communicators of the world; borrowed; null: there are no others
  std::function<void(const absl::Status& failure)> on_leave;  // called when the rank is done; may be null
};

class Group {
 public:
  Group(GroupPlace place, absl::Duration timeout);

  int size() const { return place_.block.ranks(); }
  int index() const { return place_.index; }
  int first_rank() const { return place_.first_rank; }
  int world_size() const { return static_cast<int>(place_.hosts.size()); }
  int world_rank() const { return place_.first_rank + place_.index; }
  bool one_process() const { return place_.one_process; }
  bool crowded() const { return crowded_; }  // more ranks than cores
  absl::Duration timeout() const { return timeout_; }
  PeerMemory& memory() { return memory_; }
  const std::vector<std::string>& hosts() const { return place_.hosts; }
  const std::function<void(const absl::Status&)>& on_leave() const { return place_.on_leave; }
  // The number in the world of a rank of this communicator.
  int NumberInWorld(int rank) const { return place_.names.empty() || rank < 0 ? rank : place_.names[rank]; }
  Slot& slot(uint64_t sequence) const { return place_.block.slot(sequence); }
  Post& post(uint64_t sequence, int index) const { return place_.block.post(sequence, index); }
  int process(int index) const { return place_.block.rank(index).process; }
  void Notify() { place_.block.header().changed.Notify(); }

  // Says that this rank is there. Once, before anything else.
  void Join();
  // Waits until all ranks have joined.
  absl::Status AwaitJoined();
  // Says that this rank is done: it will publish nothing more. True if it is the last of the group to be done.
  bool Leave();

  // Waits until slot `sequence` is free, describes this rank's side of the collective and shows it to the others.
  absl::Status Publish(uint64_t sequence, const OpDescription& description, const MemoryRef& input,
                       const MemoryRef& output, const std::string& label);
  // Waits until all ranks have published `sequence`, and checks that they agree.
  absl::Status AwaitPosted(uint64_t sequence);
  // The rank of this communicator that published it last, after AwaitPosted.
  int LastToPost(uint64_t sequence) const;
  // Say that this rank begins and has done its share of `sequence`, the chunks that it has taken or that are given to
  // it.
  void BeginShare(uint64_t sequence);
  void EndShare(uint64_t sequence);
  // Peers whose share is not done: of those that have begun it, or of all (if shares are `given`, not taken).
  std::vector<int> Unfinished(uint64_t sequence, bool given) const;
  // Says that this rank is done with `sequence`.
  void Retire(uint64_t sequence);

  // Between a BeginWork that returned OK and EndWork this rank may touch operands, its own and its peers'. After a
  // failure, also one that somebody is about to declare, an error.
  absl::Status BeginWork();
  void EndWork();
  // After a failure: waits until neither peers nor another thread of this rank touch operands any more, and then none
  // ever will. Not for peers that are dead, and for a peer that is stopped meanwhile not longer than a second. Any
  // thread.
  // In all communicators of this rank's world.
  void AwaitUntouched() const;
  void AwaitUntouchedHere() const;  // in this one

  // Waits until `ready`. `missing` tells for whom one waits (indices), `what` is for messages, and asked for by those
  // who wait long.
  absl::Status Await(absl::FunctionRef<bool()> ready, absl::FunctionRef<std::vector<int>()> missing,
                     absl::FunctionRef<std::string()> what);

  // Looks now and then whether the group's processes live; if one does not, that is a failure.
  // Any thread of the rank.
  absl::Status CheckAlive(const std::string& what);
  // Looks at once whether the process of the group's i-th rank lives.
  absl::Status CheckAlive(int i, const std::string& what);
  // What Await calls while it waits long, for those who have other things to look after, and how it asks ranks of other
  // groups for whom they wait. Once, before any Await.
  void OnIdle(std::function<void()> callback, Search::Ask ask_other_groups);

  // Says that this rank is alive and waits for a rank of the world; or that it waits no more.
  void SayWaiting(int rank);
  void SayGoingOn();
  // The rank for which this one slept last since then, or -1.
  int slept_for() const { return slept_for_; }
  void ForgetSleep() { slept_for_ = -1; }
  // Called by whoever waits, now and then, with how long it has waited for the same: if that is a stall, one rank of
  // the world on this host says once on stderr what all of them do.
  void LookForStall(absl::Duration waited, const std::string& what);
  // For whom this rank waits, or -1.
  int waits_for() const { return place_.block.rank(index()).waits_for.load(); }
  // For whom any rank of the world waits: of this group by the shared state, of others by asking them.
  Search::Reply Ask(int rank, bool first);
  // How long a rank may give no sign of life before that counts.
  absl::Duration grace() const;
  // The error of having waited in vain.
  absl::Status TimedOut(const std::vector<Search::Culprit>& culprits, const std::string& what);

  // Declares the world failed, for which `culprit` (a rank of this communicator) is to blame: here and in all
  // communicators of this rank's world. The first call counts. Any thread. Returns the failure that counts here.
  absl::Status Fail(int culprit, const absl::Status& status);
  // Declares it in this communicator alone; -1: nobody of this communicator is to blame.
  absl::Status FailHere(int culprit, const absl::Status& status);
  // The failure that counts, here or else in the world's communicator, or OK. Any thread.
  absl::Status failure() const;
  // What was declared in this communicator; null where nothing was, though the world's may have failed.
  const Failure* failure_here() const;
  void SayTold() { place_.block.header().failure.told.store(1); }
  // The error of two ranks that are not in the same collective.
  absl::Status Disagreement(uint64_t sequence, int rank_a, const OpDescription& a, const std::string& label_a,
                            int rank_b, const OpDescription& b, const std::string& label_b) const;
  // What to say of a rank: "rank 3 on host h1".
  std::string Name(int world_rank) const;

  // After a failure: waits a moment until all peers have noticed, for mpirun ends them when this process is gone.
  void AwaitFailureSeen(absl::Duration limit);

 private:
  absl::Status SleepUntil(absl::FunctionRef<bool()> ready, absl::FunctionRef<std::vector<int>()> missing,
                          const std::string& what);
  absl::Status CheckLeft(const std::vector<int>& late, absl::FunctionRef<bool()> ready, const std::string& what);
  absl::Status AwaitWritten() const;
  bool Alive(int index) const;

  GroupPlace place_;
  PeerMemory memory_;
  const absl::Duration timeout_;
  bool crowded_;
  int slept_for_ = -1;
  bool looked_at_stall_ = false, tells_stall_ = false;  // of the present wait
  std::atomic<int64_t> next_pulse_;                     // when to look for processes again, in nanoseconds
  std::function<void()> on_idle_ = [] {};
  Search::Ask ask_other_groups_;
  std::vector<uint32_t> beats_asked_;  // by index: the peer's beats when it was first asked
};

}  // namespace lockstep
