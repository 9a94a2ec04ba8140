#include <cstring>
#include <utility>

#include "core/dtype.h"
#include "core/status.h"
#include "runtime/comm/transfer.h"

namespace lockstep {

absl::Status ChainTransfer::Begin() {
  const OpDescription& d = description();
  const int last_group = context_.notices.groups() - 1;
  result_ = std::make_shared<MessageBytes>(result_bytes());
  if (IsReduction(d)) {
    source_ = last_up_ = last_group;
    last_down_ = TraitsOf(d.opcode).scatters ? context_.notices.GroupOf(chunk_.share) : 0;
    partial_ = std::make_shared<MessageBytes>(partial_bytes());
    if (here_ == 0) {
      RETURN_IF_ERROR(HavePrefix());
    } else {
      ASSIGN_OR_RETURN(prefix_receive_, Receive(here_ - 1, Stage::kPartial, partial_));
    }
  } else {
    source_ = context_.notices.GroupOf(SourceRank(context_.operands, chunk_));
    last_up_ = last_group;
    last_down_ = 0;
    if (here_ == source_) {
      RETURN_IF_ERROR(context_.group.BeginWork());
      std::memcpy(result_->data(), SourceAddress(context_.operands, chunk_), result_->size());
      context_.group.EndWork();
      return HaveResult();
    }
  }
  if (here_ != source_ && here_ >= last_down_ && here_ <= last_up_) {
    const int from = here_ < source_ ? here_ + 1 : here_ - 1;
    ASSIGN_OR_RETURN(result_receive_, Receive(from, Stage::kResult, result_));
  }
  return absl::OkStatus();
}

absl::StatusOr<bool> ChainTransfer::Step() {
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

std::vector<int> ChainTransfer::Missing() const {
  if (prefix_receive_ != nullptr) return {Carrier(here_ - 1)};
  if (result_receive_ != nullptr) return {Carrier(here_ < source_ ? here_ + 1 : here_ - 1)};
  return NotTaken();
}

// The partial result of the groups below is in partial_ (unless there are none): adds this group's ranks.
absl::Status ChainTransfer::HavePrefix() {
  const Operands& o = context_.operands;
  const bool last = here_ == source_;
  std::vector<const std::byte*> inputs;
  std::vector<std::byte*> outputs;
  ChunkInputs(o, chunk_, &inputs);
  if (last) {
    ChunkOutputs(o, chunk_, &outputs);
    outputs.push_back(result_->data());
  }
  RETURN_IF_ERROR(context_.group.BeginWork());
  Reduce({.kind = kind(),
          .dtype = dtype(),
          .count = chunk_.count,
          .world_size = o.world_size,
          .inputs = inputs,
          .outputs = outputs,
          .prefix = here_ == 0 ? nullptr : partial_->data(),
          .partial = last ? nullptr : partial_->data()});
  context_.group.EndWork();
  return last ? SendResult() : Send(here_ + 1, Stage::kPartial, partial_);
}

absl::Status ChainTransfer::HaveResult() {
  RETURN_IF_ERROR(CopyToOutputs(result_->data()));
  return SendResult();
}

absl::Status ChainTransfer::SendResult() {
  if (here_ <= source_ && here_ > last_down_) RETURN_IF_ERROR(Send(here_ - 1, Stage::kResult, result_));
  if (here_ >= source_ && here_ < last_up_) RETURN_IF_ERROR(Send(here_ + 1, Stage::kResult, result_));
  return absl::OkStatus();
}

}  // namespace lockstep
