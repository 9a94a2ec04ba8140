// The part of a collective call that must be the same on all ranks, and what messages say of it. Pure functions; any
// thread.

#pragma once

#include <cstdint>
#include <string>

#include "runtime/communicator.h"

namespace lockstep {

// What an opcode moves where is in TraitsOf (chunks.h).
enum class Opcode : uint8_t {
  kBarrier,
  kAllocate,
  kAllReduce,
  kBroadcast,
  kAllGather,
  kReduceScatter,
  kAllToAll,
  kPermute,
  kGather,
  kScatter
};

// What must be the same on all ranks, besides the label.
struct OpDescription {
  Opcode opcode = Opcode::kBarrier;
  uint8_t kind = 0;   // ReduceKind, of a reduction
  uint8_t dtype = 0;  // DType
  int32_t root = 0;   // of what has one
  int32_t pieces = 1;
  int64_t count = 0;   // elements, as the caller gave it, of all pieces
  uint64_t lists = 0;  // hash of the pieces' counts if there are several, and of the pairs
  Communicator::Evidence evidence = {};
  bool compared_only = false;  // nothing is moved
  bool is_transfer = false;    // see Communicator::Call
  bool operator==(const OpDescription&) const = default;
};

// "all_reduce sum f32[10] `bucket 0`".
std::string Describe(const OpDescription& description, const std::string& label);

// What the first field means in which the evidence of two ranks, of these numbers, differs; "" if none does.
std::string DifferenceOf(int rank_a, const Communicator::Evidence& a, int rank_b, const Communicator::Evidence& b);

}  // namespace lockstep
