#include "runtime/comm/collective/chunks.h"

#include <algorithm>
#include <cstring>

#include "core/collective_op.h"
#include "core/dtype.h"

namespace lockstep {
namespace {

uint32_t SharesOf(const CollectiveTraits& traits, int world_size) {
  const auto ranks = static_cast<uint32_t>(world_size);
  if (traits.gathers && traits.scatters) return ranks * ranks;
  return traits.gathers || traits.scatters || traits.permutes ? ranks : 1;
}

}  // namespace

Chunks::Chunks(const Collective& collective, int world_size, int workers, size_t max_bytes, size_t min_bytes) {
  const CollectiveTraits traits = TraitsOf(collective.op);
  if (collective.count() == 0 || !traits.moves_data) return;
  const uint32_t shares = SharesOf(traits, world_size);
  const int64_t width = static_cast<int64_t>(SizeOf(collective.dtype));
  const int64_t total = shares * collective.count() * width;
  const int64_t bytes =
      std::clamp(total / (4 * workers), static_cast<int64_t>(min_bytes), static_cast<int64_t>(max_bytes));
  const int64_t most = std::max<int64_t>(1, bytes / 64 * 64 / width);
  for (size_t p = 0; p < collective.counts.size(); ++p) {
    const int64_t count = collective.counts[p];
    if (count == 0) continue;
    elements_ = std::max(elements_, std::min(count, most));
    cuts_.push_back({static_cast<int>(p), count, size_, static_cast<uint32_t>((count + most - 1) / most)});
    size_ += shares * cuts_.back().per_share;
  }
}

Chunk Chunks::at(uint32_t index) const {
  const auto after =
      std::upper_bound(cuts_.begin(), cuts_.end(), index, [](uint32_t i, const Cut& cut) { return i < cut.first; });
  const Cut& cut = *(after - 1);
  const uint32_t i = index - cut.first;
  const int64_t elements = std::min(cut.count, elements_), begin = (i % cut.per_share) * elements;
  return {.piece = cut.piece,
          .share = static_cast<int>(i / cut.per_share),
          .begin = begin,
          .count = std::min(elements, cut.count - begin)};
}

Operands Operands::Of(const Collective& collective, int world_size, int first_rank) {
  Operands operands{.collective = &collective,
                    .world_size = world_size,
                    .first_rank = first_rank,
                    .pieces = PiecesOf(collective, world_size)};
  if (!TraitsOf(collective.op).permutes) return operands;
  operands.sources.assign(static_cast<size_t>(world_size), -1);
  for (const RankPair& pair : collective.pairs) operands.sources[static_cast<size_t>(pair.target)] = pair.source;
  return operands;
}

int SourceRank(const Operands& o, const Chunk& chunk) {
  const CollectiveTraits traits = TraitsOf(o.collective->op);
  if (traits.from_root) return o.collective->root;
  if (traits.permutes) return o.sources[static_cast<size_t>(chunk.share)];
  return chunk.share % o.world_size;
}

int TargetRank(const Operands& o, const Chunk& chunk) {
  const CollectiveTraits traits = TraitsOf(o.collective->op);
  if (traits.to_root) return o.collective->root;
  if (traits.gathers && traits.scatters)
    return (chunk.share % o.world_size + chunk.share / o.world_size) % o.world_size;
  return traits.scatters || traits.permutes ? chunk.share : -1;
}

namespace {

// In bytes from the beginning of any rank's operand.
size_t InputOffset(const Operands& o, const Chunk& chunk) {
  const Piece& piece = o.pieces[static_cast<size_t>(chunk.piece)];
  const int64_t share = TraitsOf(o.collective->op).scatters ? TargetRank(o, chunk) : 0;
  return piece.input_begin + static_cast<size_t>(share * piece.count + chunk.begin) * SizeOf(o.collective->dtype);
}

size_t OutputOffset(const Operands& o, const Chunk& chunk) {
  const Piece& piece = o.pieces[static_cast<size_t>(chunk.piece)];
  const int64_t share = TraitsOf(o.collective->op).gathers ? SourceRank(o, chunk) : 0;
  return piece.output_begin + static_cast<size_t>(share * piece.count + chunk.begin) * SizeOf(o.collective->dtype);
}

}  // namespace

void ChunkInputs(const Operands& o, const Chunk& chunk, std::vector<const std::byte*>* addresses) {
  const size_t offset = InputOffset(o, chunk);
  addresses->clear();
  for (const std::byte* input : o.inputs) addresses->push_back(input + offset);
}

void ChunkOutputs(const Operands& o, const Chunk& chunk, std::vector<std::byte*>* addresses) {
  const size_t offset = OutputOffset(o, chunk);
  const int target = TargetRank(o, chunk), index = target - o.first_rank;
  addresses->clear();
  if (target < 0) {
    for (std::byte* output : o.outputs) addresses->push_back(output + offset);
  } else if (index >= 0 && index < static_cast<int>(o.outputs.size())) {
    addresses->push_back(o.outputs[static_cast<size_t>(index)] + offset);
  }
}

const std::byte* SourceAddress(const Operands& o, const Chunk& chunk) {
  return o.inputs[static_cast<size_t>(SourceRank(o, chunk) - o.first_rank)] + InputOffset(o, chunk);
}

void CopyToAll(const std::byte* from, const std::vector<std::byte*>& to, size_t bytes) {
  for (std::byte* address : to) {
    if (address != from) std::memcpy(address, from, bytes);
  }
}

}  // namespace lockstep
