#include "runtime/comm/transfer/pair_transfer.h"

#include <cstring>
#include <utility>

#include "core/status.h"

namespace lockstep {

absl::Status PairTransfer::Begin() {
  const Operands& o = context_.operands;
  const int source = SourceRank(o, chunk_);
  if (source < 0) return absl::OkStatus();  // for a permute: the target gets zeros
  source_ = context_.group_notices.GroupOf(source);
  const int target = context_.group_notices.GroupOf(TargetRank(o, chunk_));
  if (here_ == source_ && here_ == target) {
    std::vector<std::byte*> outputs;
    ChunkOutputs(o, chunk_, &outputs);
    RETURN_IF_ERROR(context_.group.BeginWork());
    CopyToAll(SourceAddress(o, chunk_), outputs, result_bytes());
    context_.group.EndWork();
    return absl::OkStatus();
  }
  if (here_ != source_ && here_ != target) return absl::OkStatus();
  data_ = std::make_shared<MessageBytes>(result_bytes());
  if (here_ == target) {
    ASSIGN_OR_RETURN(receive_, Receive(source_, Stage::kResult, data_));
    return absl::OkStatus();
  }
  RETURN_IF_ERROR(context_.group.BeginWork());
  std::memcpy(data_->data(), SourceAddress(o, chunk_), data_->size());
  context_.group.EndWork();
  return Send(target, Stage::kResult, data_);
}

absl::StatusOr<bool> PairTransfer::Step() {
  bool progress = false;
  if (receive_ != nullptr) {
    ASSIGN_OR_RETURN(const bool here, receive_->Test());
    if (!here) return false;
    receive_.reset();
    RETURN_IF_ERROR(CopyToOutputs(data_->data()));
    progress = true;
  }
  ASSIGN_OR_RETURN(done_, AllSent());
  return progress || done_;
}

std::vector<int> PairTransfer::Missing() const {
  if (receive_ != nullptr) return {Carrier(source_)};
  return UnfinishedReceivers();
}

}  // namespace lockstep
