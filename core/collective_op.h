// What ranks do together: the collectives that a communicator offers (runtime/communicator.h), and what the compiler
// has to know of each. Plain values; any thread.

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
  std::string_view name;   // "all_reduce": what steps and messages call it
  bool reduces = false;    // has a kind
  bool has_root = false;   // that is, a coordinate along the axis
  bool has_pairs = false;  // of a rank that sends and the one that it sends to
  bool in_place = false;   // the result takes the operand's place
  // Takes several operands, side by side in a bucket, and gives a result for each; the others take and give one.
  bool is_in_bucket = false;
  bool scatters = false;  // the operand holds a slice for each rank
  bool gathers = false;   // the result holds a slice of each rank
  // The communicator counts the elements of a rank's slice.
  bool counts_slices() const { return scatters || gathers; }
};
CollectiveTraits TraitsOf(CollectiveOp op);

inline std::string_view CollectiveOpName(CollectiveOp op) { return TraitsOf(op).name; }

// Of a permutation: rank `source` sends to rank `target`.
struct RankPair {
  int source = 0, target = 0;
  bool operator==(const RankPair&) const = default;
};

}  // namespace lockstep
