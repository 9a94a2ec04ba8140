// The collectives that a communicator offers (runtime/communicator.h), and their properties that the compiler needs.
// Plain values; any thread.

#pragma once

#include <cstdint>
#include <string_view>

namespace lockstep {

enum class CollectiveOp : uint8_t {
  kAllReduce,
  kBroadcast,
  kAllGather,
  kReduceScatter,
  kAllToAll,
  kPermute,
  kGather,
  kScatter
};

struct CollectiveTraits {
  std::string_view name;   // the name in steps and messages, such as "all_reduce"
  bool reduces = false;    // has a kind
  bool has_root = false;   // a coordinate along the axis
  bool has_pairs = false;  // pairs of a sending and a receiving rank
  bool in_place = false;   // the result overwrites the operand
  // Takes several operands, adjacent in a bucket, and has a result for each. Others have one operand and one result.
  bool is_in_bucket = false;
  bool scatters = false;  // the operand holds a slice for each rank
  bool gathers = false;   // the result holds a slice of each rank
  // True if the count given to the communicator is the number of elements of one rank's slice.
  bool counts_slices() const { return scatters || gathers; }
};
CollectiveTraits TraitsOf(CollectiveOp op);

inline std::string_view CollectiveOpName(CollectiveOp op) { return TraitsOf(op).name; }

// One pair of a permutation: rank `source` sends to rank `target`.
struct RankPair {
  int source = 0, target = 0;
  bool operator==(const RankPair&) const = default;
};

}  // namespace lockstep
