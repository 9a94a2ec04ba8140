// One chunk of a collective on its way between the groups, as the rank that carries it in its group sees it. Used by
// the rank's progress thread.

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
#include "runtime/comm/transfer/notices.h"

namespace lockstep {

// Chunks use tags below 2 * kChunkTags, in turn.
inline constexpr uint32_t kChunkTags = 8192;

class Transfer {
 public:
  // What chunks of a collective have in common. All are borrowed.
  struct Context {
    Group& group;
    Links& links;
    const Notices& notices;  // knows which rank is in which group
    const Operands& operands;
  };

  static std::unique_ptr<Transfer> Create(Route route, const Context& context, uint32_t index, const Chunk& chunk);
  virtual ~Transfer() = default;

  // Copies or receives what this rank needs first. Once, before Step.
  virtual absl::Status Begin() = 0;
  // Looks at what is under way, and goes on if it has come: true if something happened.
  virtual absl::StatusOr<bool> Step() = 0;
  // For whom it waits: the ranks that send, or, if all has come, those that have not taken what was sent.
  virtual std::vector<int> Missing() const = 0;
  // Nothing is left to do.
  bool done() const { return done_; }

 protected:
  // Which of a chunk's two messages between a pair of ranks it is.
  enum class Stage { kPartial, kResult };

  Transfer(const Context& context, Route route, uint32_t index, const Chunk& chunk);

  // The rank of a group that carries this chunk.
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
  // Whether all that was sent has gone.
  absl::StatusOr<bool> AllSent();
  std::vector<int> NotTaken() const;

  const Context context_;
  const Route route_;
  const uint32_t index_;
  const Chunk chunk_;
  const int here_;  // this rank's group
  bool done_ = false;

 private:
  struct Outgoing {
    int to;
    std::unique_ptr<LinkRequest> request;
  };
  std::vector<Outgoing> sends_;
};

// One chunk that groups pass on, first a partial result to which each adds its ranks, then the result.
class RelayTransfer : public Transfer {
 public:
  absl::StatusOr<bool> Step() final;
  std::vector<int> Missing() const final;

 protected:
  using Transfer::Transfer;

  // From Begin, for what comes from another group; HavePrefix and HaveResult are called when it is there.
  absl::Status AwaitPrefix(int group);
  absl::Status AwaitResult(int group);
  virtual absl::Status HavePrefix() = 0;
  virtual absl::Status HaveResult() = 0;

  // Adds this group's ranks to the partial result in partial_, in which there is none yet if it is the first; if it is
  // the last, that is the result, of the group's outputs and of result_, if that is there.
  absl::Status AddThisGroup(bool is_first, bool is_last);

  MessageBuffer partial_;  // of a reduction: the sum of the groups before, then with this one
  MessageBuffer result_;

 private:
  struct Awaited {
    int group = -1;
    std::unique_ptr<LinkRequest> request;  // null: nothing is awaited, or it has come
  };
  absl::Status Await(int group, Stage stage, const MessageBuffer& buffer, Awaited* awaited);
  // Whether it has just come.
  static absl::StatusOr<bool> HasCome(Awaited& awaited);

  Awaited prefix_, awaited_result_;
};

// One chunk on its way along the chain.
class ChainTransfer final : public RelayTransfer {
 public:
  ChainTransfer(const Context& context, uint32_t index, const Chunk& chunk)
      : RelayTransfer(context, Route::kChain, index, chunk) {}
  absl::Status Begin() override;

 private:
  absl::Status HavePrefix() override;
  absl::Status HaveResult() override;
  absl::Status SendResult();

  int source_ = 0;     // the group from which the result spreads; of a reduction the last
  int last_up_ = 0;    // the groups at which the result stops, upwards
  int last_down_ = 0;  // and downwards
};

// One chunk that groups send each other directly: partial results to its owner, or to all, and results from there.
class DirectTransfer final : public Transfer {
 public:
  // `owner`: a group; -1: each group is one.
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
  // Whether groups send their partial results as the operands' dtype, not as what they are added in: see PartialSize.
  bool RoundsPartials() const { return dtype() == DType::kBF16; }
  absl::Status BeginReduction();
  absl::Status ReduceGroup(std::byte* partial);
  absl::Status BeginCopy();
  absl::Status HaveAll();

  const int owner_;
  std::vector<MessageBuffer> partials_;  // of a reduction, by group; empty but this group's where it does not own
  MessageBuffer result_;                 // where it travels
  std::vector<Incoming> receives_;
};

}  // namespace lockstep
