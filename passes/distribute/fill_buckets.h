// Which collectives go into one bucket: for merge_collectives.cc, whose header says how they are chosen.

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
  int64_t position = 0;  // in the graph, of what its first operand is computed by; -1: it is an input
};

// Whether it is one of those that may be in a bucket at all.
bool IsInBucket(const Node& node);

// The collectives that are in no bucket yet, in buckets, those first whose first operand is computed first.
// InvalidArgument if options.measured knows none of those that it is for, or none of those that have a wire.
absl::StatusOr<std::vector<Bucket>> FillBuckets(Graph& graph, const MergeOptions& options);

}  // namespace lockstep::passes
