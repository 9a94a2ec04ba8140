// How a collective falls into pieces that any rank can do, each rank reading and writing its peers' operands directly.
// A piece never depends on another, and its result never on who does it. Pure functions over addresses; any thread.

#pragma once

#include <cstddef>
#include <cstdint>
#include <optional>
#include <string_view>
#include <vector>

#include "runtime/comm/control_block.h"

namespace lockstep {

// What an opcode is, for all who move its data and speak of it.
struct OpcodeTraits {
  std::string_view name = "?";
  bool moves_data = true;
  bool reduces = false;
  bool has_root = false;  // whose input alone is read
  bool gathers = false;   // the output holds a share of each rank
  bool scatters = false;  // the input does, and the output is one of them
};
OpcodeTraits TraitsOf(Opcode opcode);
std::optional<Opcode> OpcodeNamed(std::string_view name);

// The bytes of a rank's operands.
size_t InputBytes(const OpDescription& description, int world_size);
size_t OutputBytes(const OpDescription& description, int world_size);

// A range of elements. For all_gather and reduce_scatter it lies in one rank's share.
struct Chunk {
  int share = 0;      // the rank whose share of the whole it is part of; 0 for other collectives
  int64_t begin = 0;  // in elements from the share's begin
  int64_t count = 0;
};

// A collective cut into chunks, the same on all ranks.
class Chunks {
 public:
  Chunks() = default;
  // Chunks have at most `max_bytes`, less when that keeps `workers` busy, but then at least `min_bytes`.
  Chunks(const OpDescription& description, int world_size, int workers, size_t max_bytes, size_t min_bytes = 4 * 1024);

  uint32_t size() const { return shares_ * per_share_; }
  Chunk at(uint32_t index) const;
  int64_t max_count() const { return elements_; }

 private:
  int64_t count_ = 0;
  int64_t elements_ = 0;  // of a chunk
  uint32_t shares_ = 0;
  uint32_t per_share_ = 0;
};

// The operands of a group's ranks, as this process reaches them, and what is to be done with them.
struct Operands {
  OpDescription description;
  int world_size = 0;
  int first_rank = 0;  // of the group
  std::vector<const std::byte*> inputs;
  std::vector<std::byte*> outputs;
};

bool IsReduction(const OpDescription& description);

// The addresses of a chunk: in the inputs of the group's ranks, in rank order; in the outputs of those of them that get
// the result.
void ChunkInputs(const Operands& operands, const Chunk& chunk, std::vector<const std::byte*>* addresses);
void ChunkOutputs(const Operands& operands, const Chunk& chunk, std::vector<std::byte*>* addresses);

// The rank whose input a chunk of a broadcast or an all_gather is copied from, and the chunk's address in it (which
// requires that the rank is of this group).
int SourceRank(const OpDescription& description, const Chunk& chunk);
const std::byte* SourceAddress(const Operands& operands, const Chunk& chunk);

// Copies `bytes` to each address but `from` itself.
void CopyToAll(const std::byte* from, const std::vector<std::byte*>& to, size_t bytes);

}  // namespace lockstep
