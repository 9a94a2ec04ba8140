#include "runtime/comm/transfer/ring_transfer.h"

#include <cstring>

#include "core/status.h"

namespace lockstep {

RingTransfer::RingTransfer(const Context& context, uint32_t index, const Chunk& chunk, int owner)
    : RelayTransfer(context, Route::kRing, index, chunk),
      owner_(owner),
      next_((here_ + 1) % context.group_notices.groups()),
      previous_((here_ + context.group_notices.groups() - 1) % context.group_notices.groups()) {}

absl::Status RingTransfer::Begin() {
  const bool is_owner = here_ == owner_;
  if (traits().reduces) {
    partial_ = std::make_shared<MessageBytes>(partial_bytes());
    if (previous_ == owner_) {
      RETURN_IF_ERROR(OnPrefix());
    } else {
      RETURN_IF_ERROR(AwaitPrefix(previous_));
    }
    if (is_owner || traits().scatters) return absl::OkStatus();
  }
  result_ = std::make_shared<MessageBytes>(result_bytes());
  if (!is_owner) return AwaitResult(previous_);
  RETURN_IF_ERROR(context_.group.BeginWork());
  std::memcpy(result_->data(), SourceAddress(context_.operands, chunk_), result_->size());
  context_.group.EndWork();
  return OnResult();
}

absl::Status RingTransfer::OnPrefix() {
  const bool is_owner = here_ == owner_, has_readers = !traits().scatters;
  if (is_owner && has_readers) result_ = std::make_shared<MessageBytes>(result_bytes());
  RETURN_IF_ERROR(AddThisGroup(previous_ == owner_, is_owner));
  if (!is_owner) return Send(next_, Stage::kPartial, partial_);
  return has_readers ? PassResult() : absl::OkStatus();
}

absl::Status RingTransfer::OnResult() {
  RETURN_IF_ERROR(CopyToOutputs(result_->data()));
  return PassResult();
}

absl::Status RingTransfer::PassResult() {
  return next_ == owner_ ? absl::OkStatus() : Send(next_, Stage::kResult, result_);
}

}  // namespace lockstep
