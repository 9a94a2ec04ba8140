// The Communicator of ranks with shared memory, alone or linked to other groups of ranks. In-process, shared-memory and
// MPI communicators are built from it. They differ in how the memory of the group is created and in the links between
// groups. Without a progress thread, collectives progress in Wait (runtime/communicator.h).

#pragma once

#include <condition_variable>
#include <deque>
#include <map>
#include <memory>
#include <mutex>
#include <string>
#include <string_view>
#include <thread>
#include <vector>

#include "runtime/comm/collective/chunks.h"
#include "runtime/comm/collective/description.h"
#include "runtime/comm/host/group.h"
#include "runtime/comm/network/links.h"
#include "runtime/comm/transfer/between_groups.h"
#include "runtime/communicator.h"
#include "runtime/record/recorder.h"

namespace lockstep {

class RankCommunicator final : public Communicator {
 public:
  // Creates the end of the rank that `config` describes. `links` is null if the group is the world. Otherwise it
  // connects the groups, and a progress thread is started. Waits until all ranks of the group have joined. `policy`
  // determines the routes between groups and must be equal on all ranks.
  static absl::StatusOr<std::unique_ptr<RankCommunicator>> Create(GroupConfig config, std::unique_ptr<Links> links,
                                                                  std::string transport, const Options& options,
                                                                  const RoutePolicy& policy = {});
  ~RankCommunicator() override;

  int groups() const;
  int largest_group() const;  // the number of its ranks
  // Applies from the next collective on, and to later splits of this communicator. All ranks call it alike, with no
  // collective in flight.
  void SetRoutes(const RoutePolicy& policy);
  const RoutePolicy& routes() const { return policy_; }
  // Replaces Options::timeout for waits from now on, but not for later splits. Any thread.
  void SetTimeout(absl::Duration timeout) { group_->set_timeout(timeout); }

  absl::StatusOr<std::unique_ptr<RegisteredMemory>> Allocate(size_t bytes, std::string_view label) override;
  absl::StatusOr<std::unique_ptr<RegisteredMemory>> AllocateShared(size_t bytes, std::string_view label) override;
  absl::StatusOr<Ticket> Start(const Collective& collective, const void* input, void* output,
                               const Call& call) override;
  absl::Status Wait(Ticket ticket, Stream* stream) override;
  absl::Status Barrier(std::string_view label) override;
  absl::StatusOr<std::vector<std::string>> AllGatherBytes(std::string_view bytes, std::string_view label) override;
  absl::StatusOr<std::unique_ptr<Communicator>> Split(int color, std::string_view label) override;
  absl::Status CheckPeers() override;
  void Abort(const absl::Status& cause) override;

 private:
  // A collective in flight.
  struct Op {
    uint64_t sequence = 0;
    Collective collective;  // with counts of 0 if only compared
    OpDescription description;
    std::string label;
    const std::byte* input = nullptr;
    std::byte* output = nullptr;
    PeerMemory::Located located_input, located_output;
    bool staged_output = false;  // the result must be copied to `output`
    bool published = false;
    bool done = false;
    absl::Status result;
  };

  RankCommunicator(GroupConfig config, std::shared_ptr<WorldGroups> world_groups, std::unique_ptr<Links> links,
                   std::string transport, const Options& options, const RoutePolicy& policy);
  static absl::StatusOr<std::unique_ptr<RankCommunicator>> CreateIn(std::shared_ptr<WorldGroups> world_groups,
                                                                    GroupConfig config, std::unique_ptr<Links> links,
                                                                    std::string transport, const Options& options,
                                                                    const RoutePolicy& policy);
  // Returns a segment that `first_rank`, of this group, creates and other ranks of this group open. All ranks call it.
  absl::StatusOr<std::shared_ptr<Segment>> ShareSegment(int first_rank, size_t bytes, std::string_view label);

  // The stages of an op, on the thread that makes progress.
  absl::Status Publish(Op& op);
  void Record(const Op& op, TransferEvent::Phase phase, int64_t time);
  absl::Status PublishOperands(Op& op);
  absl::Status RunOp(Op& op);
  absl::Status Finish(absl::Status result);
  absl::Status CompleteOutput(const Op& op);
  absl::StatusOr<Operands> Resolve(const Op& op);
  absl::Status Work(const Op& op);
  absl::Status TakeChunks(const Op& op, const Chunks& chunks);
  absl::Status AwaitFinished(const Op& op, uint32_t chunks);
  void RunOldest();
  // For a progress thread, or a waiting thread in its place. `lock` holds the progress mutex and is released while the
  // op runs.
  void RunOldest(std::unique_lock<std::mutex>& lock);
  void ProgressLoop();

  // The data that the rank's own thread and the progress thread share, guarded by `mutex` if there is a progress
  // thread.
  struct Progress {
    std::mutex mutex;
    std::condition_variable changed;
    std::deque<Op*> queue;                        // ops that are not done, oldest first
    std::map<uint64_t, std::unique_ptr<Op>> ops;  // by ticket, until waited for
    bool busy = false;                            // a thread runs the oldest op
    bool stop = false;
    std::thread thread;  // joinable if there is one
  };

  // Returns OK in the process that made this communicator. Returns an error in a process that was forked from it:
  // everything here belongs to the other process and must not be touched.
  absl::Status CheckProcess() const;

  const uint32_t generation_;  // ForkGeneration() of the process that uses this object
  const Options options_;
  RoutePolicy policy_;                               // for splits of this communicator
  const std::shared_ptr<WorldGroups> world_groups_;  // shared by this rank's communicators in the world
  const std::shared_ptr<Group> group_;               // shared with world_groups_
  std::unique_ptr<Links> links_;                     // null if the group is the world
  std::unique_ptr<BetweenGroups> between_groups_;    // null if the group is the world
  const uint32_t recorded_as_;                       // the number of this communicator in the recorder
  uint64_t next_sequence_ = 0;
  // On the heap, like the links, because a forked process must leave it as it is: the thread does not exist there, and
  // locks may be held.
  std::unique_ptr<Progress> progress_;
};

}  // namespace lockstep
