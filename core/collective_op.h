// What ranks do together: the collectives that a communicator offers (runtime/communicator.h), and what the compiler
// has to know of each. Plain values; any thread.

#pragma once

#include <cstdint>
#include <string_view>

namespace lockstep {

enum class CollectiveOp : uint8_t { kAllReduce, kBroadcast, kAllGather, kReduceScatter };

struct CollectiveTraits {
  std::string_view name;  // "all_reduce": what steps and messages call it
  bool reduces = false;   // has a kind
  bool has_root = false;  // that is, a coordinate along the axis
  // Works in place in a bucket, on several operands; the others take one operand, and give one result.
  bool is_in_bucket = false;
  bool counts_results = false;  // the communicator counts the elements of the result, not of the operand
};
CollectiveTraits TraitsOf(CollectiveOp op);

inline std::string_view CollectiveOpName(CollectiveOp op) { return TraitsOf(op).name; }

}  // namespace lockstep
