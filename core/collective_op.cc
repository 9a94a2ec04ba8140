#include "core/collective_op.h"

namespace lockstep {

// Without a default, so that the compiler reports a collective that has no row.
CollectiveTraits TraitsOf(CollectiveOp op) {
  switch (op) {
    case CollectiveOp::kBarrier: return {.name = "barrier", .moves_data = false};
    case CollectiveOp::kAllocate: return {.name = "allocate", .moves_data = false};
    case CollectiveOp::kAllReduce:
      return {.name = "all_reduce", .reduces = true, .is_in_place = true, .is_in_bucket = true};
    case CollectiveOp::kBroadcast: return {.name = "broadcast", .from_root = true};
    case CollectiveOp::kAllGather: return {.name = "all_gather", .gathers = true, .is_in_bucket = true};
    case CollectiveOp::kReduceScatter:
      return {.name = "reduce_scatter", .reduces = true, .scatters = true, .is_in_bucket = true};
    case CollectiveOp::kAllToAll: return {.name = "all_to_all", .scatters = true, .gathers = true};
    case CollectiveOp::kPermute: return {.name = "permute", .permutes = true};
    case CollectiveOp::kGather: return {.name = "gather", .to_root = true, .gathers = true};
    case CollectiveOp::kScatter: return {.name = "scatter", .from_root = true, .scatters = true};
  }
  return {};
}

std::vector<CollectiveOp> CollectiveOpsWith(bool (*property)(const CollectiveTraits&)) {
  std::vector<CollectiveOp> ops;
  for (CollectiveOp op = {}; !TraitsOf(op).name.empty(); op = static_cast<CollectiveOp>(static_cast<int>(op) + 1)) {
    if (property(TraitsOf(op))) ops.push_back(op);
  }
  return ops;
}

std::optional<CollectiveOp> CollectiveOpFromName(std::string_view name) {
  for (const CollectiveOp op : CollectiveOpsWith([](const CollectiveTraits& traits) { return traits.moves_data; })) {
    if (TraitsOf(op).name == name) return op;
  }
  return std::nullopt;
}

}  // namespace lockstep
