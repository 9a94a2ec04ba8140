// The part of a collective call that must be equal on all ranks, and its texts in messages. Pure functions; any thread.

#pragma once

#include <cstdint>
#include <string>

#include "runtime/collective.h"
#include "runtime/communicator.h"

namespace lockstep {

// The fields that must be equal, besides the label. Ranks exchange them as plain bytes.
struct OpDescription {
  CollectiveOp op = CollectiveOp::kBarrier;
  uint8_t kind = 0;   // ReduceKind
  uint8_t dtype = 0;  // DType
  int32_t root = 0;
  int32_t pieces = 1;
  int64_t count = 0;   // elements of all pieces
  uint64_t lists = 0;  // a hash of the pairs, and of the pieces' counts if there are several
  Communicator::Evidence evidence = {};
  bool compared_only = false;  // (Communicator::Call)
  bool is_transfer = false;    // (Communicator::Call)
  bool operator==(const OpDescription&) const = default;
};
OpDescription DescriptionOf(const Collective& collective, const Communicator::Call& call);

// Returns a text like "all_reduce sum f32[10] `bucket 0`".
std::string Describe(const OpDescription& description, const std::string& label);

// Returns the meaning of the first field in which the evidence of the two ranks differs; "" if none does.
std::string DifferenceOf(int rank_a, const Communicator::Evidence& a, int rank_b, const Communicator::Evidence& b);

}  // namespace lockstep
