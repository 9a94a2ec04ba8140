#include "core/status.h"
#include "runtime/comm/transfer/transfer.h"

namespace lockstep {

absl::Status RelayTransfer::AwaitPrefix(int group) { return Await(group, Stage::kPartial, partial_, &prefix_); }

absl::Status RelayTransfer::AwaitResult(int group) { return Await(group, Stage::kResult, result_, &awaited_result_); }

absl::Status RelayTransfer::Await(int group, Stage stage, const MessageBuffer& buffer, Awaited* awaited) {
  awaited->group = group;
  ASSIGN_OR_RETURN(awaited->request, Receive(group, stage, buffer));
  return absl::OkStatus();
}

absl::StatusOr<bool> RelayTransfer::HasArrived(Awaited& awaited) {
  if (awaited.request == nullptr) return false;
  ASSIGN_OR_RETURN(const bool here, awaited.request->Test());
  if (here) awaited.request.reset();
  return here;
}

absl::StatusOr<bool> RelayTransfer::Step() {
  ASSIGN_OR_RETURN(const bool has_prefix, HasArrived(prefix_));
  if (has_prefix) RETURN_IF_ERROR(OnPrefix());
  if (prefix_.request != nullptr) return false;
  ASSIGN_OR_RETURN(const bool has_result, HasArrived(awaited_result_));
  if (has_result) RETURN_IF_ERROR(OnResult());
  const bool progress = has_prefix || has_result;
  if (awaited_result_.request != nullptr) return progress;
  ASSIGN_OR_RETURN(done_, AllSent());
  return progress || done_;
}

std::vector<int> RelayTransfer::Missing() const {
  for (const Awaited* awaited : {&prefix_, &awaited_result_}) {
    if (awaited->request != nullptr) return {Carrier(awaited->group)};
  }
  return UnfinishedReceivers();
}

absl::Status RelayTransfer::AddThisGroup(bool is_first, bool is_last) {
  const Operands& o = context_.operands;
  std::vector<const std::byte*> inputs;
  std::vector<std::byte*> outputs;
  ChunkInputs(o, chunk_, &inputs);
  if (is_last) {
    ChunkOutputs(o, chunk_, &outputs);
    if (result_ != nullptr) outputs.push_back(result_->data());
  }
  RETURN_IF_ERROR(context_.group.BeginWork());
  Reduce({.kind = kind(),
          .dtype = dtype(),
          .count = chunk_.count,
          .world_size = o.world_size,
          .inputs = inputs,
          .outputs = outputs,
          .prefix = is_first ? nullptr : partial_->data(),
          .partial = is_last ? nullptr : partial_->data()});
  context_.group.EndWork();
  return absl::OkStatus();
}

}  // namespace lockstep
