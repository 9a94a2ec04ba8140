// Assigns collectives to buckets, for merge_collectives.cc alone. merge_collectives.h says how they are chosen.

#pragma once

#include <cstdint>
#include <vector>

#include "core/graph.h"
#include "core/status.h"
#include "passes/distribute/merge_collectives.h"

namespace lockstep::passes {

struct Bucket {
  std::vector<Node*> nodes;
  int64_t bytes = 0;     // as MergeOptions::max_bytes counts them
  int64_t position = 0;  // the position in the graph at which the bucket's first collective is ready; -1: at the start
};

// Returns true if the node is a collective whose kind may be in a bucket.
bool IsInBucket(const Node& node);

// Returns buckets of the collectives that are in no bucket yet, in the order of Bucket::position. Returns
// InvalidArgument if options.measured has no times for any collective along an axis with costs, or for none of a group
// of mergeable collectives that have a wire.
absl::StatusOr<std::vector<Bucket>> FillBuckets(Graph& graph, const MergeOptions& options);

}  // namespace lockstep::passes
