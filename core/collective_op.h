// The collectives that ranks can do together, and what is true of each: one row in collective_op.cc, which the compiler
// and all communicators read. Plain values; any thread.

#pragma once

#include <cstdint>
#include <optional>
#include <string_view>
#include <vector>

namespace lockstep {

enum class CollectiveOp : uint8_t {
  kBarrier,
  kAllocate,  // of memory that is registered with a communicator
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
  std::string_view name;     // "all_reduce", in steps and messages
  bool moves_data = true;    // false: only the communicator's own
  bool reduces = false;      // inputs of ranks are combined elementwise, by a ReduceKind
  bool from_root = false;    // the root's input alone is read
  bool to_root = false;      // the root's output alone gets anything
  bool permutes = false;     // from the sources of pairs to their targets
  bool scatters = false;     // the input holds a slice for each rank
  bool gathers = false;      // the output holds a slice of each rank
  bool is_in_place = false;  // the compiler puts the result in the operand's place
  // The compiler may merge several into one call, side by side in a bucket, which has a result for each operand.
  bool is_in_bucket = false;

  bool has_root() const { return from_root || to_root; }
  // The communicator counts the elements of a rank's slice.
  bool counts_slices() const { return scatters || gathers; }
  // Each element is copied from one rank to one rank. Input and output must then be apart; those of other collectives
  // may be in place (runtime/collective.h).
  bool is_direct() const { return !reduces && (permutes || to_root || scatters); }
  // There are several ways for it between groups of ranks, from which a communicator chooses (runtime/comm/routes).
  bool has_routes() const { return moves_data && !is_direct(); }
  // No rank has its result before all ranks have started: each result depends on all inputs.
  bool synchronizes() const { return moves_data && !has_root() && !permutes; }
};
CollectiveTraits TraitsOf(CollectiveOp op);

// Returns the collectives with a property, in the order of their enumerators.
std::vector<CollectiveOp> CollectiveOpsWith(bool (*property)(const CollectiveTraits&));

inline std::string_view CollectiveOpName(CollectiveOp op) { return TraitsOf(op).name; }
// The collective of this name that moves data; null if there is none.
std::optional<CollectiveOp> CollectiveOpFromName(std::string_view name);

// In a permutation, rank `source` sends to rank `target`.
struct RankPair {
  int source = 0, target = 0;
  bool operator==(const RankPair&) const = default;
};

}  // namespace lockstep
