#include "runtime/comm/chunks.h"

#include <algorithm>
#include <cstring>

#include "core/collective_op.h"
#include "core/dtype.h"

namespace lockstep {
namespace {

size_t Width(const OpDescription& description) { return SizeOf(static_cast<DType>(description.dtype)); }

}  // namespace

// Without a default, so that an opcode that is missing is an error of the compiler.
OpcodeTraits TraitsOf(Opcode opcode) {
  switch (opcode) {
    case Opcode::kBarrier: return {.name = "barrier", .moves_data = false};
    case Opcode::kAllocate: return {.name = "allocate", .moves_data = false};
    case Opcode::kAllReduce: return {.name = CollectiveOpName(CollectiveOp::kAllReduce), .reduces = true};
    case Opcode::kBroadcast: return {.name = CollectiveOpName(CollectiveOp::kBroadcast), .has_root = true};
    case Opcode::kAllGather: return {.name = CollectiveOpName(CollectiveOp::kAllGather), .gathers = true};
    case Opcode::kReduceScatter:
      return {.name = CollectiveOpName(CollectiveOp::kReduceScatter), .reduces = true, .scatters = true};
  }
  return {};
}

std::optional<Opcode> OpcodeNamed(std::string_view name) {
  for (int i = 0; TraitsOf(static_cast<Opcode>(i)).name != OpcodeTraits().name; ++i) {
    if (TraitsOf(static_cast<Opcode>(i)).name == name) return static_cast<Opcode>(i);
  }
  return std::nullopt;
}

size_t InputBytes(const OpDescription& d, int world_size) {
  return d.compared_only ? 0 : (TraitsOf(d.opcode).scatters ? world_size : 1) * d.count * Width(d);
}

size_t OutputBytes(const OpDescription& d, int world_size) {
  return d.compared_only ? 0 : (TraitsOf(d.opcode).gathers ? world_size : 1) * d.count * Width(d);
}

Chunks::Chunks(const OpDescription& d, int world_size, int workers, size_t max_bytes, size_t min_bytes)
    : count_(d.count) {
  const OpcodeTraits traits = TraitsOf(d.opcode);
  if (d.count == 0 || !traits.moves_data || d.compared_only) return;
  shares_ = traits.gathers || traits.scatters ? world_size : 1;
  const int64_t width = static_cast<int64_t>(Width(d));
  const int64_t total = shares_ * d.count * width;
  const int64_t bytes =
      std::clamp(total / (4 * workers), static_cast<int64_t>(min_bytes), static_cast<int64_t>(max_bytes));
  elements_ = std::min(d.count, std::max<int64_t>(1, bytes / 64 * 64 / width));
  per_share_ = static_cast<uint32_t>((d.count + elements_ - 1) / elements_);
}

Chunk Chunks::at(uint32_t index) const {
  const int64_t begin = (index % per_share_) * elements_;
  return {.share = static_cast<int>(index / per_share_), .begin = begin, .count = std::min(elements_, count_ - begin)};
}

bool IsReduction(const OpDescription& d) { return TraitsOf(d.opcode).reduces; }

void ChunkInputs(const Operands& o, const Chunk& chunk, std::vector<const std::byte*>* addresses) {
  const int64_t offset = chunk.share * o.description.count + chunk.begin;  // all_reduce has share 0
  addresses->clear();
  for (const std::byte* input : o.inputs) addresses->push_back(input + offset * Width(o.description));
}

void ChunkOutputs(const Operands& o, const Chunk& chunk, std::vector<std::byte*>* addresses) {
  const size_t width = Width(o.description);
  addresses->clear();
  if (TraitsOf(o.description.opcode).scatters) {
    const int index = chunk.share - o.first_rank;
    if (index < 0 || index >= static_cast<int>(o.outputs.size())) return;
    addresses->push_back(o.outputs[index] + chunk.begin * width);
    return;
  }
  for (std::byte* output : o.outputs)
    addresses->push_back(output + (chunk.share * o.description.count + chunk.begin) * width);
}

int SourceRank(const OpDescription& d, const Chunk& chunk) {
  return TraitsOf(d.opcode).has_root ? d.root : chunk.share;
}

const std::byte* SourceAddress(const Operands& o, const Chunk& chunk) {
  return o.inputs[SourceRank(o.description, chunk) - o.first_rank] + chunk.begin * Width(o.description);
}

void CopyToAll(const std::byte* from, const std::vector<std::byte*>& to, size_t bytes) {
  for (std::byte* address : to) {
    if (address != from) std::memcpy(address, from, bytes);
  }
}

}  // namespace lockstep
