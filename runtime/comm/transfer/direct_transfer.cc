#include <algorithm>
#include <cstring>
#include <utility>

#include "core/status.h"
#include "runtime/comm/transfer/transfer.h"

namespace lockstep {

absl::Status DirectTransfer::Begin() { return traits().reduces ? BeginReduction() : BeginCopy(); }

absl::Status DirectTransfer::BeginReduction() {
  const int groups = context_.group_notices.groups();
  const bool is_owner = owner_ < 0 || owner_ == here_;
  const size_t bytes = partial_bytes();
  partials_.resize(groups);
  partials_[here_] = std::make_shared<MessageBytes>(bytes);
  RETURN_IF_ERROR(ReduceGroup(partials_[here_]->data()));
  for (int i = 1; i < groups; ++i) {
    const int other = (here_ + i) % groups;  // so that not all send to the same group first
    if (owner_ < 0 || owner_ == other) RETURN_IF_ERROR(Send(other, Stage::kPartial, partials_[here_]));
    if (!is_owner) continue;
    partials_[other] = std::make_shared<MessageBytes>(bytes);
    ASSIGN_OR_RETURN(auto request, Receive(other, Stage::kPartial, partials_[other]));
    receives_.push_back({other, std::move(request)});
  }
  if (is_owner || traits().scatters) return absl::OkStatus();
  result_ = std::make_shared<MessageBytes>(result_bytes());
  ASSIGN_OR_RETURN(auto request, Receive(owner_, Stage::kResult, result_));
  receives_.push_back({owner_, std::move(request)});
  return absl::OkStatus();
}

absl::Status DirectTransfer::ReduceGroup(std::byte* partial) {
  std::vector<const std::byte*> inputs;
  ChunkInputs(context_.operands, chunk_, &inputs);
  Reduction reduction{.kind = kind(),
                      .dtype = dtype(),
                      .count = chunk_.count,
                      .world_size = context_.operands.world_size,
                      .inputs = inputs};
  if (RoundsPartials()) {
    if (kind() == ReduceKind::kMean) reduction.kind = ReduceKind::kSum;  // divided once, at the end
    reduction.outputs = {&partial, 1};
  } else {
    reduction.partial = partial;
  }
  RETURN_IF_ERROR(context_.group.BeginWork());
  Reduce(reduction);
  context_.group.EndWork();
  return absl::OkStatus();
}

absl::Status DirectTransfer::BeginCopy() {
  const int source = context_.group_notices.GroupOf(SourceRank(context_.operands, chunk_)),
            groups = context_.group_notices.groups();
  result_ = std::make_shared<MessageBytes>(result_bytes());
  if (here_ != source) {
    ASSIGN_OR_RETURN(auto request, Receive(source, Stage::kResult, result_));
    receives_.push_back({source, std::move(request)});
    return absl::OkStatus();
  }
  RETURN_IF_ERROR(context_.group.BeginWork());
  std::memcpy(result_->data(), SourceAddress(context_.operands, chunk_), result_->size());
  context_.group.EndWork();
  for (int i = 1; i < groups; ++i) RETURN_IF_ERROR(Send((here_ + i) % groups, Stage::kResult, result_));
  return CopyToOutputs(result_->data());
}

absl::StatusOr<bool> DirectTransfer::Step() {
  bool progress = false;
  if (!receives_.empty()) {
    for (Incoming& receive : receives_) {
      ASSIGN_OR_RETURN(const bool here, receive.request->Test());
      if (here) receive.request.reset();
      progress = progress || here;
    }
    std::erase_if(receives_, [](const Incoming& receive) { return receive.request == nullptr; });
    if (!receives_.empty()) return progress;
    RETURN_IF_ERROR(OnAllReceived());
  }
  ASSIGN_OR_RETURN(done_, AllSent());
  return progress || done_;
}

std::vector<int> DirectTransfer::Missing() const {
  if (receives_.empty()) return UnfinishedReceivers();
  std::vector<int> ranks;
  for (const Incoming& receive : receives_) ranks.push_back(Carrier(receive.group));
  return ranks;
}

// Continues after all awaited data has arrived: the result, or the partial results of all groups.
absl::Status DirectTransfer::OnAllReceived() {
  const bool is_owner = owner_ < 0 || owner_ == here_;
  if (!traits().reduces || !is_owner) return CopyToOutputs(result_->data());
  std::vector<std::byte*> outputs;
  ChunkOutputs(context_.operands, chunk_, &outputs);
  const bool has_readers = owner_ >= 0 && !traits().scatters;
  if (has_readers) {
    result_ = std::make_shared<MessageBytes>(result_bytes());
    outputs.push_back(result_->data());
  }
  std::vector<const std::byte*> partials;
  for (const MessageBuffer& partial : partials_) partials.push_back(partial->data());
  Reduction reduction{.kind = kind(),
                      .dtype = dtype(),
                      .count = chunk_.count,
                      .world_size = context_.operands.world_size,
                      .outputs = outputs};
  (RoundsPartials() ? reduction.inputs : reduction.partials) = partials;
  RETURN_IF_ERROR(context_.group.BeginWork());
  Reduce(reduction);
  context_.group.EndWork();
  const int groups = context_.group_notices.groups();
  for (int i = 1; has_readers && i < groups; ++i) RETURN_IF_ERROR(Send((here_ + i) % groups, Stage::kResult, result_));
  return absl::OkStatus();
}

}  // namespace lockstep
