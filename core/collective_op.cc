#include "core/collective_op.h"

namespace lockstep {

// The switch has no default, so that the C++ compiler reports a missing collective.
CollectiveTraits TraitsOf(CollectiveOp op) {
  switch (op) {
    case CollectiveOp::kAllReduce:
      return {.name = "all_reduce", .reduces = true, .in_place = true, .is_in_bucket = true};
    case CollectiveOp::kBroadcast: return {.name = "broadcast", .has_root = true};
    case CollectiveOp::kAllGather: return {.name = "all_gather", .is_in_bucket = true, .gathers = true};
    case CollectiveOp::kReduceScatter:
      return {.name = "reduce_scatter", .reduces = true, .is_in_bucket = true, .scatters = true};
    case CollectiveOp::kAllToAll: return {.name = "all_to_all", .scatters = true, .gathers = true};
    case CollectiveOp::kPermute: return {.name = "permute", .has_pairs = true};
    case CollectiveOp::kGather: return {.name = "gather", .has_root = true, .gathers = true};
    case CollectiveOp::kScatter: return {.name = "scatter", .has_root = true, .scatters = true};
  }
  return {};
}

}  // namespace lockstep
