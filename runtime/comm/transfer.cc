#include "runtime/comm/transfer.h"

#include <cstring>
#include <utility>

#include "core/dtype.h"
#include "core/status.h"
#include "runtime/comm/reduce.h"

namespace lockstep {
namespace {

constexpr int kUpTag = 0;
constexpr int kDownTag = 1;

int ChunkTag(uint32_t index, int direction) { return static_cast<int>(index % kChunkTags) * 2 + direction; }

}  // namespace

Transfer::Transfer(const Context& context, uint32_t index, const Chunk& chunk)
    : context_(context), index_(index), chunk_(chunk), here_(context.notices.GroupOf(context.group.world_rank())) {}

int Transfer::Carrier(int group) const {
  return context_.notices.begins()[group] + static_cast<int>(index_ % context_.notices.GroupSize(group));
}

bool Transfer::IsReduction() const { return lockstep::IsReduction(context_.operands.description); }

absl::Status Transfer::Begin() {
  const OpDescription& d = context_.operands.description;
  const DType dtype = static_cast<DType>(d.dtype);
  const int last_group = context_.notices.groups() - 1;
  result_ = std::make_shared<std::vector<std::byte>>(chunk_.count * SizeOf(dtype));
  if (IsReduction()) {
    source_ = last_up_ = last_group;
    last_down_ = TraitsOf(d.opcode).scatters ? context_.notices.GroupOf(chunk_.share) : 0;
    partial_ = std::make_shared<std::vector<std::byte>>(chunk_.count *
                                                        AccumulatorSize(dtype, static_cast<ReduceKind>(d.kind)));
    if (here_ == 0) {
      RETURN_IF_ERROR(HavePrefix());
    } else {
      ASSIGN_OR_RETURN(prefix_receive_, context_.links.Receive(Carrier(here_ - 1), ChunkTag(index_, kUpTag), partial_));
    }
  } else {
    source_ = context_.notices.GroupOf(SourceRank(d, chunk_));
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
    ASSIGN_OR_RETURN(result_receive_, context_.links.Receive(Carrier(from), ChunkTag(index_, kDownTag), result_));
  }
  return absl::OkStatus();
}

absl::StatusOr<bool> Transfer::Step() {
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
  for (Outgoing& send : sends_) {
    ASSIGN_OR_RETURN(const bool gone, send.request->Test());
    if (gone) send.request.reset();
  }
  std::erase_if(sends_, [](const Outgoing& send) { return send.request == nullptr; });
  done_ = sends_.empty();
  return progress || done_;
}

std::vector<int> Transfer::Missing() const {
  if (prefix_receive_ != nullptr) return {Carrier(here_ - 1)};
  if (result_receive_ != nullptr) return {Carrier(here_ < source_ ? here_ + 1 : here_ - 1)};
  std::vector<int> ranks;
  for (const Outgoing& send : sends_) ranks.push_back(send.to);
  return ranks;
}

// The partial result of the groups below is in partial_ (unless there are none): adds this group's ranks.
absl::Status Transfer::HavePrefix() {
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
  Reduce({.kind = static_cast<ReduceKind>(o.description.kind),
          .dtype = static_cast<DType>(o.description.dtype),
          .count = chunk_.count,
          .world_size = o.world_size,
          .inputs = inputs,
          .outputs = outputs,
          .prefix = here_ == 0 ? nullptr : partial_->data(),
          .partial = last ? nullptr : partial_->data()});
  context_.group.EndWork();
  return last ? SendResult() : SendPrefix();
}

absl::Status Transfer::HaveResult() {
  std::vector<std::byte*> outputs;
  ChunkOutputs(context_.operands, chunk_, &outputs);
  RETURN_IF_ERROR(context_.group.BeginWork());
  CopyToAll(result_->data(), outputs, result_->size());
  context_.group.EndWork();
  return SendResult();
}

absl::Status Transfer::SendPrefix() {
  const int to = Carrier(here_ + 1);
  ASSIGN_OR_RETURN(auto request, context_.links.Send(to, ChunkTag(index_, kUpTag), partial_));
  sends_.push_back({to, std::move(request)});
  return absl::OkStatus();
}

absl::Status Transfer::SendResult() {
  if (here_ <= source_ && here_ > last_down_) RETURN_IF_ERROR(SendResultTo(here_ - 1));
  if (here_ >= source_ && here_ < last_up_) RETURN_IF_ERROR(SendResultTo(here_ + 1));
  return absl::OkStatus();
}

absl::Status Transfer::SendResultTo(int group) {
  const int to = Carrier(group);
  ASSIGN_OR_RETURN(auto request, context_.links.Send(to, ChunkTag(index_, kDownTag), result_));
  sends_.push_back({to, std::move(request)});
  return absl::OkStatus();
}

}  // namespace lockstep
