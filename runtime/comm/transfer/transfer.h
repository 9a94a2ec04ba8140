// The transfer of one chunk of a collective between groups, from the view of the rank that carries it in its group.
// Used by the rank's progress thread.

#pragma once

#include <memory>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "runtime/comm/collective/chunks.h"
#include "runtime/comm/collective/reduce.h"
#include "runtime/comm/host/group.h"
#include "runtime/comm/network/links.h"
#include "runtime/comm/routes/route.h"
#include "runtime/comm/transfer/group_notices.h"

namespace lockstep {

// Chunks use the tags below 2 * kChunkTags in turn.
inline constexpr uint32_t kChunkTags = 8192;

class Transfer {
 public:
  // The data that all chunks of a collective share. All are borrowed.
  struct Context {
    Group& group;
    Links& links;
    const GroupNotices& group_notices;  // knows the group of each rank
    const Operands& operands;
  };

  static std::unique_ptr<Transfer> Create(Route route, const Context& context, uint32_t index, const Chunk& chunk);
  virtual ~Transfer() = default;

  // Copies or receives the data that this rank needs first. Call it once, before Step.
  virtual absl::Status Begin() = 0;
  // Tests the messages in flight, and continues if they have arrived. Returns true if there was progress.
  virtual absl::StatusOr<bool> Step() = 0;
  // Returns the ranks for which it waits: the senders, or, if all has arrived, the receivers that have not taken their
  // data.
  virtual std::vector<int> Missing() const = 0;
  // True if nothing is left to do.
  bool done() const { return done_; }

 protected:
  // The kind of a chunk's message. There is at most one of each between a pair of ranks.
  enum class Stage { kPartial, kResult };

  Transfer(const Context& context, Route route, uint32_t index, const Chunk& chunk);

  // Returns the rank of a group that carries this chunk.
  int Carrier(int group) const;
  CollectiveTraits traits() const { return TraitsOf(context_.operands.collective->op); }
  DType dtype() const { return context_.operands.collective->dtype; }
  ReduceKind kind() const { return context_.operands.collective->kind; }
  size_t result_bytes() const { return chunk_.count * SizeOf(dtype()); }
  size_t partial_bytes() const { return chunk_.count * PartialSize(route_, dtype(), kind()); }

  absl::Status Send(int group, Stage stage, MessageBuffer buffer);
  absl::StatusOr<std::unique_ptr<LinkRequest>> Receive(int group, Stage stage, MessageBuffer buffer);
  // Copies the result to the outputs of this group's ranks.
  absl::Status CopyToOutputs(const std::byte* result);
  // Returns true if all sends are complete.
  absl::StatusOr<bool> AllSent();
  std::vector<int> UnfinishedReceivers() const;

  const Context context_;
  const Route route_;
  const uint32_t index_;
  const Chunk chunk_;
  const int here_;  // the number of this rank's group
  bool done_ = false;

 private:
  struct Outgoing {
    int to;
    std::unique_ptr<LinkRequest> request;
  };
  std::vector<Outgoing> sends_;
};

// The transfer of one chunk that groups pass on: first a partial result to which each group adds its ranks, then the
// result.
class RelayTransfer : public Transfer {
 public:
  absl::StatusOr<bool> Step() final;
  std::vector<int> Missing() const final;

 protected:
  using Transfer::Transfer;

  // Begin calls these to receive from another group. OnPrefix and OnResult are called after the data has arrived.
  absl::Status AwaitPrefix(int group);
  absl::Status AwaitResult(int group);
  virtual absl::Status OnPrefix() = 0;
  virtual absl::Status OnResult() = 0;

  // Adds this group's ranks to the partial result in partial_, or starts it if this group is the first. If it is the
  // last, writes the result to the group's outputs and to result_, if that is not null.
  absl::Status AddThisGroup(bool is_first, bool is_last);

  MessageBuffer partial_;  // for a reduction: the sum of the earlier groups, then with this one
  MessageBuffer result_;

 private:
  struct Awaited {
    int group = -1;
    std::unique_ptr<LinkRequest> request;  // null: nothing is awaited, or it has arrived
  };
  absl::Status Await(int group, Stage stage, const MessageBuffer& buffer, Awaited* awaited);
  // Returns true if it has just arrived.
  static absl::StatusOr<bool> HasArrived(Awaited& awaited);

  Awaited prefix_, awaited_result_;
};

// The transfer of one chunk along the chain.
class ChainTransfer final : public RelayTransfer {
 public:
  ChainTransfer(const Context& context, uint32_t index, const Chunk& chunk)
      : RelayTransfer(context, Route::kChain, index, chunk) {}
  absl::Status Begin() override;

 private:
  absl::Status OnPrefix() override;
  absl::Status OnResult() override;
  absl::Status SendResult();

  int source_ = 0;     // the group from which the result spreads; for a reduction, the last
  int last_up_ = 0;    // the last group upwards that receives the result
  int last_down_ = 0;  // the last group downwards that receives it
};

// The direct transfer of one chunk: partial results to its owner, or to all groups, and results from there.
class DirectTransfer final : public Transfer {
 public:
  // `owner` is a group; -1: each group is an owner.
  DirectTransfer(const Context& context, uint32_t index, const Chunk& chunk, int owner)
      : Transfer(context, owner < 0 ? Route::kAll : Route::kOwner, index, chunk), owner_(owner) {}
  absl::Status Begin() override;
  absl::StatusOr<bool> Step() override;
  std::vector<int> Missing() const override;

 private:
  struct Incoming {
    int group;
    std::unique_ptr<LinkRequest> request;
  };
  // True if groups send partial results in the dtype of the operands, not in that of the accumulators (PartialSize).
  bool RoundsPartials() const { return dtype() == DType::kBF16; }
  absl::Status BeginReduction();
  absl::Status ReduceGroup(std::byte* partial);
  absl::Status BeginCopy();
  absl::Status OnAllReceived();

  const int owner_;
  std::vector<MessageBuffer> partials_;  // for a reduction, by group; only this group's if it is not an owner
  MessageBuffer result_;                 // if it is sent or received
  std::vector<Incoming> receives_;
};

}  // namespace lockstep
