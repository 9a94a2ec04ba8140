#include "runtime/comm/transfer/transfer.h"

#include <utility>

#include "core/dtype.h"
#include "core/status.h"
#include "runtime/comm/transfer/halving_transfer.h"
#include "runtime/comm/transfer/pair_transfer.h"
#include "runtime/comm/transfer/ring_transfer.h"

namespace lockstep {

namespace {

// Returns the group that has a chunk's result first, or the group of the source for copies.
int OwnerOf(const Transfer::Context& context, uint32_t index, const Chunk& chunk) {
  const CollectiveTraits traits = TraitsOf(context.operands.collective->op);
  if (!traits.reduces) return context.group_notices.GroupOf(SourceRank(context.operands, chunk));
  if (traits.scatters) return context.group_notices.GroupOf(chunk.share);
  // Owners alternate such that each rank of a group carries chunks of all owners.
  return static_cast<int>(index) / context.group_notices.GroupSize(0) % context.group_notices.groups();
}

}  // namespace

std::unique_ptr<Transfer> Transfer::Create(Route route, const Context& context, uint32_t index, const Chunk& chunk) {
  switch (route) {
    case Route::kChain: return std::make_unique<ChainTransfer>(context, index, chunk);
    case Route::kAll: return std::make_unique<DirectTransfer>(context, index, chunk, -1);
    case Route::kOwner: return std::make_unique<DirectTransfer>(context, index, chunk, OwnerOf(context, index, chunk));
    case Route::kRing: return std::make_unique<RingTransfer>(context, index, chunk, OwnerOf(context, index, chunk));
    case Route::kHalving: return std::make_unique<HalvingTransfer>(context, index, chunk);
    case Route::kPair: return std::make_unique<PairTransfer>(context, index, chunk);
  }
  return nullptr;
}

Transfer::Transfer(const Context& context, Route route, uint32_t index, const Chunk& chunk)
    : context_(context),
      route_(route),
      index_(index),
      chunk_(chunk),
      here_(context.group_notices.GroupOf(context.group.world_rank())) {}

int Transfer::Carrier(int group) const {
  return context_.group_notices.begins()[group] + static_cast<int>(index_ % context_.group_notices.GroupSize(group));
}

absl::Status Transfer::Send(int group, Stage stage, MessageBuffer buffer) {
  const int to = Carrier(group), tag = static_cast<int>(index_ % kChunkTags) * 2 + static_cast<int>(stage);
  ASSIGN_OR_RETURN(auto request, context_.links.Send(to, tag, std::move(buffer)));
  sends_.push_back({to, std::move(request)});
  return absl::OkStatus();
}

absl::StatusOr<std::unique_ptr<LinkRequest>> Transfer::Receive(int group, Stage stage, MessageBuffer buffer) {
  const int tag = static_cast<int>(index_ % kChunkTags) * 2 + static_cast<int>(stage);
  return context_.links.Receive(Carrier(group), tag, std::move(buffer));
}

absl::Status Transfer::CopyToOutputs(const std::byte* result) {
  std::vector<std::byte*> outputs;
  ChunkOutputs(context_.operands, chunk_, &outputs);
  RETURN_IF_ERROR(context_.group.BeginWork());
  CopyToAll(result, outputs, result_bytes());
  context_.group.EndWork();
  return absl::OkStatus();
}

absl::StatusOr<bool> Transfer::AllSent() {
  for (Outgoing& send : sends_) {
    ASSIGN_OR_RETURN(const bool gone, send.request->Test());
    if (gone) send.request.reset();
  }
  std::erase_if(sends_, [](const Outgoing& send) { return send.request == nullptr; });
  return sends_.empty();
}

std::vector<int> Transfer::UnfinishedReceivers() const {
  std::vector<int> ranks;
  for (const Outgoing& send : sends_) ranks.push_back(send.to);
  return ranks;
}

}  // namespace lockstep
