#include <cstring>
#include <utility>

#include "core/status.h"
#include "runtime/comm/transfer/transfer.h"

namespace lockstep {

absl::Status ChainTransfer::Begin() {
  const int last_group = context_.group_notices.groups() - 1;
  result_ = std::make_shared<MessageBytes>(result_bytes());
  if (traits().reduces) {
    source_ = last_up_ = last_group;
    last_down_ = traits().scatters ? context_.group_notices.GroupOf(chunk_.share) : 0;
    partial_ = std::make_shared<MessageBytes>(partial_bytes());
    if (here_ == 0) {
      RETURN_IF_ERROR(OnPrefix());
    } else {
      RETURN_IF_ERROR(AwaitPrefix(here_ - 1));
    }
  } else {
    source_ = context_.group_notices.GroupOf(SourceRank(context_.operands, chunk_));
    last_up_ = last_group;
    last_down_ = 0;
    if (here_ == source_) {
      RETURN_IF_ERROR(context_.group.BeginWork());
      std::memcpy(result_->data(), SourceAddress(context_.operands, chunk_), result_->size());
      context_.group.EndWork();
      return OnResult();
    }
  }
  if (here_ != source_ && here_ >= last_down_ && here_ <= last_up_) {
    RETURN_IF_ERROR(AwaitResult(here_ < source_ ? here_ + 1 : here_ - 1));
  }
  return absl::OkStatus();
}

absl::Status ChainTransfer::OnPrefix() {
  const bool is_last = here_ == source_;
  RETURN_IF_ERROR(AddThisGroup(here_ == 0, is_last));
  return is_last ? SendResult() : Send(here_ + 1, Stage::kPartial, partial_);
}

absl::Status ChainTransfer::OnResult() {
  RETURN_IF_ERROR(CopyToOutputs(result_->data()));
  return SendResult();
}

absl::Status ChainTransfer::SendResult() {
  if (here_ <= source_ && here_ > last_down_) RETURN_IF_ERROR(Send(here_ - 1, Stage::kResult, result_));
  if (here_ >= source_ && here_ < last_up_) RETURN_IF_ERROR(Send(here_ + 1, Stage::kResult, result_));
  return absl::OkStatus();
}

}  // namespace lockstep
