#include "runtime/comm/ring_transfer.h"

#include <cstring>

#include "core/status.h"

namespace lockstep {

RingTransfer::RingTransfer(const Context& context, uint32_t index, const Chunk& chunk, int owner)
    : Transfer(context, Route::kRing, index, chunk),
      owner_(owner),
      next_((here_ + 1) % context.notices.groups()),
      previous_((here_ + context.notices.groups() - 1) % context.notices.groups()) {}

absl::Status RingTransfer::Begin() {
  const OpDescription& d = description();
  const bool is_owner = here_ == owner_;
  if (IsReduction(d)) {
    partial_ = std::make_shared<MessageBytes>(partial_bytes());
    if (previous_ == owner_) {
      RETURN_IF_ERROR(HavePrefix());
    } else {
      ASSIGN_OR_RETURN(prefix_receive_, Receive(previous_, Stage::kPartial, partial_));
    }
    if (is_owner || TraitsOf(d.opcode).scatters) return absl::OkStatus();
  }
  result_ = std::make_shared<MessageBytes>(result_bytes());
  if (!is_owner) {
    ASSIGN_OR_RETURN(result_receive_, Receive(previous_, Stage::kResult, result_));
    return absl::OkStatus();
  }
  RETURN_IF_ERROR(context_.group.BeginWork());
  std::memcpy(result_->data(), SourceAddress(context_.operands, chunk_), result_->size());
  context_.group.EndWork();
  return HaveResult();
}

absl::StatusOr<bool> RingTransfer::Step() {
  bool progress = false;
  if (prefix_receive_ != nullptr) {
    ASSIGN_OR_RETURN(const bool here, prefix_receive_->Test());
    if (!here) return false;
    prefix_receive_.reset();
    RETURN_IF_ERROR(HavePrefix());
    progress = true;
  }
  if (result_receive_ != nullptr) {
    ASSIGN_OR_RETURN(const bool here, result_receive_->Test());
    if (!here) return progress;
    result_receive_.reset();
    RETURN_IF_ERROR(HaveResult());
    progress = true;
  }
  ASSIGN_OR_RETURN(done_, AllSent());
  return progress || done_;
}

std::vector<int> RingTransfer::Missing() const {
  if (prefix_receive_ != nullptr || result_receive_ != nullptr) return {Carrier(previous_)};
  return NotTaken();
}

// The partial result of the groups before is in partial_ (unless this is the first): adds this group's ranks.
absl::Status RingTransfer::HavePrefix() {
  const Operands& o = context_.operands;
  const bool is_first = previous_ == owner_, is_owner = here_ == owner_;
  const bool has_readers = !TraitsOf(description().opcode).scatters;
  std::vector<const std::byte*> inputs;
  std::vector<std::byte*> outputs;
  ChunkInputs(o, chunk_, &inputs);
  if (is_owner) {
    ChunkOutputs(o, chunk_, &outputs);
    if (has_readers) {
      result_ = std::make_shared<MessageBytes>(result_bytes());
      outputs.push_back(result_->data());
    }
  }
  RETURN_IF_ERROR(context_.group.BeginWork());
  Reduce({.kind = kind(),
          .dtype = dtype(),
          .count = chunk_.count,
          .world_size = o.world_size,
          .inputs = inputs,
          .outputs = outputs,
          .prefix = is_first ? nullptr : partial_->data(),
          .partial = is_owner ? nullptr : partial_->data()});
  context_.group.EndWork();
  if (!is_owner) return Send(next_, Stage::kPartial, partial_);
  return has_readers ? PassResult() : absl::OkStatus();
}

absl::Status RingTransfer::HaveResult() {
  RETURN_IF_ERROR(CopyToOutputs(result_->data()));
  return PassResult();
}

absl::Status RingTransfer::PassResult() {
  return next_ == owner_ ? absl::OkStatus() : Send(next_, Stage::kResult, result_);
}

}  // namespace lockstep
