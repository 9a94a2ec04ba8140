#include "core/collective_op.h"

namespace lockstep {

// Without a default, so that a collective that is missing is an error of the compiler.
CollectiveTraits TraitsOf(CollectiveOp op) {
  switch (op) {
    case CollectiveOp::kAllReduce: return {.name = "all_reduce", .reduces = true, .is_in_bucket = true};
    case CollectiveOp::kBroadcast: return {.name = "broadcast", .has_root = true};
    case CollectiveOp::kAllGather: return {.name = "all_gather"};
    case CollectiveOp::kReduceScatter: return {.name = "reduce_scatter", .reduces = true, .counts_results = true};
  }
  return {};
}

}  // namespace lockstep
