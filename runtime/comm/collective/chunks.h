// How a collective falls into pieces that any rank can do, each rank reading and writing its peers' operands directly.
// A piece never depends on another, and its result never on who does it. Pure functions over addresses; any thread.

#pragma once

#include <cstddef>
#include <cstdint>
#include <vector>

#include "runtime/collective.h"

namespace lockstep {

// A range of elements in one piece, of what lies together in the operands of all ranks.
struct Chunk {
  int piece = 0;
  // The rank whose share of the whole it is part of, of what gathers or scatters; the target of a permute. An
  // all_to_all has a share for each pair of ranks, s + n * k of n ranks being from s to s + k, so that in turn each
  // rank sends to another one. 0 for other collectives.
  int share = 0;
  int64_t begin = 0;  // in elements from the share's begin
  int64_t count = 0;
};

// A collective cut into chunks, the same on all ranks.
class Chunks {
 public:
  Chunks() = default;
  // Chunks have at most `max_bytes`, less when that keeps `workers` busy, but then at least `min_bytes`.
  Chunks(const Collective& collective, int world_size, int workers, size_t max_bytes, size_t min_bytes = 4 * 1024);

  uint32_t size() const { return size_; }
  Chunk at(uint32_t index) const;  // requires index < size()
  int64_t max_count() const { return elements_; }

 private:
  struct Cut {
    int piece = 0;
    int64_t count = 0;       // elements of a share
    uint32_t first = 0;      // chunk
    uint32_t per_share = 0;  // chunks
  };
  int64_t elements_ = 0;   // of a chunk, at most
  std::vector<Cut> cuts_;  // of the pieces that are not empty
  uint32_t size_ = 0;
};

// The operands of a group's ranks, as this process reaches them, and what is to be done with them.
struct Operands {
  // Those of the group with this first rank, without its inputs and outputs. `collective` is borrowed.
  static Operands Of(const Collective& collective, int world_size, int first_rank);

  const Collective* collective = nullptr;
  int world_size = 0;
  int first_rank = 0;                         // of the group
  std::vector<Piece> pieces;                  // one at least
  std::vector<int> sources = {};              // of a permute: by target, -1 if it gets nothing
  std::vector<const std::byte*> inputs = {};  // what is not read or not written may be null
  std::vector<std::byte*> outputs = {};
};

// The addresses of a chunk: in the inputs of the group's ranks, in rank order; in the outputs of those of them that get
// the result.
void ChunkInputs(const Operands& operands, const Chunk& chunk, std::vector<const std::byte*>* addresses);
void ChunkOutputs(const Operands& operands, const Chunk& chunk, std::vector<std::byte*>* addresses);

// Of what is copied: the rank whose input the chunk is in, -1 if it is in none, and its address in there (which
// requires that the rank is of this group).
int SourceRank(const Operands& operands, const Chunk& chunk);
const std::byte* SourceAddress(const Operands& operands, const Chunk& chunk);
// The rank that alone gets the chunk, or its result; -1 if all do.
int TargetRank(const Operands& operands, const Chunk& chunk);

// Copies `bytes` to each address but `from` itself.
void CopyToAll(const std::byte* from, const std::vector<std::byte*>& to, size_t bytes);

}  // namespace lockstep
