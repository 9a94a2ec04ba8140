// Splits a collective into chunks that any rank can do, reading and writing its peers' operands directly. Chunks are
// independent, and a result does not depend on the rank that computes it. Pure functions over addresses; any thread.

#pragma once

#include <cstddef>
#include <cstdint>
#include <vector>

#include "runtime/collective.h"

namespace lockstep {

// A range of elements within one piece that is contiguous in the operands of all ranks.
struct Chunk {
  int piece = 0;
  // For ops that gather or scatter: the rank whose share of the whole contains the chunk. For a permute: the target. An
  // all_to_all has a share for each pair of ranks: share s + n * k, with n ranks, goes from s to s + k, so that each
  // rank sends to another one in turn. 0 for other collectives.
  int share = 0;
  int64_t begin = 0;  // in elements from the beginning of the share
  int64_t count = 0;
};

// A collective split into chunks, the same on all ranks.
class Chunks {
 public:
  Chunks() = default;
  // Chunks have at most `max_bytes`, and less if this keeps `workers` busy, but then at least `min_bytes`.
  Chunks(const Collective& collective, int world_size, int workers, size_t max_bytes, size_t min_bytes = 4 * 1024);

  uint32_t size() const { return size_; }
  Chunk at(uint32_t index) const;  // requires index < size()
  int64_t max_count() const { return elements_; }

 private:
  struct Cut {
    int piece = 0;
    int64_t count = 0;       // elements of a share
    uint32_t first = 0;      // the index of the first chunk
    uint32_t per_share = 0;  // the number of chunks
  };
  int64_t elements_ = 0;   // the largest number of elements of a chunk
  std::vector<Cut> cuts_;  // for the pieces that are not empty
  uint32_t size_ = 0;
};

// The operands of a group's ranks, at their addresses in this process, and the collective.
struct Operands {
  // Returns the operands of the group with this first rank, without inputs and outputs. `collective` is borrowed.
  static Operands Of(const Collective& collective, int world_size, int first_rank);

  const Collective* collective = nullptr;
  int world_size = 0;
  int first_rank = 0;                         // of the group
  std::vector<Piece> pieces;                  // at least one
  std::vector<int> sources = {};              // for a permute: the source by target, -1 if the target receives nothing
  std::vector<const std::byte*> inputs = {};  // null is allowed for operands that are not read or written
  std::vector<std::byte*> outputs = {};
};

// Set `addresses` to those of a chunk: in the inputs of the group's ranks, in rank order; in the outputs of the ranks
// of the group that receive the result.
void ChunkInputs(const Operands& operands, const Chunk& chunk, std::vector<const std::byte*>* addresses);
void ChunkOutputs(const Operands& operands, const Chunk& chunk, std::vector<std::byte*>* addresses);

// For collectives that copy: the rank whose input contains the chunk, -1 if there is none; and the address of the chunk
// there, which requires that the rank is in this group.
int SourceRank(const Operands& operands, const Chunk& chunk);
const std::byte* SourceAddress(const Operands& operands, const Chunk& chunk);
// The only rank that receives the chunk or its result; -1 if all ranks do.
int TargetRank(const Operands& operands, const Chunk& chunk);

// Copies `bytes` to each address except `from`.
void CopyToAll(const std::byte* from, const std::vector<std::byte*>& to, size_t bytes);

}  // namespace lockstep
