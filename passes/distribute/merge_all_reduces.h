// Merges all-reduces of one axis, kind, dtype and wire into one over a bucket, so that latency is paid once for many
// small gradients:
//
//   %a = all_reduce %x {axis=data, kind=sum} : f32[2]
//   %b = all_reduce %y {axis=data, kind=sum} : f32[3]
// becomes
//   %a, %b = all_reduce %x, %y {axis=data, bucket=0, kind=sum} : f32[2], f32[3]
//
// No data moves: the bucket is a place in memory that the buffer planner gives %x and %y. Buckets are filled in the
// order in which their operands are computed, so that the first bucket is complete early and is reduced while the
// backward pass goes on. All-reduces that others wait for (batch statistics) are merged only when neither needs the
// other.

#pragma once

#include <cstdint>

#include "passes/pass.h"

namespace lockstep::passes {

struct MergeOptions {
  // A bucket is closed when another operand would make it larger; an operand larger than this has a bucket of its own.
  int64_t max_bytes = 4 << 20;
  // The first bucket, whose reduction nothing delays, is kept smaller.
  int64_t first_bytes = max_bytes / 8;
};

// Every all_reduce gets a bucket, numbered in the order of the graph.
Pass MergeAllReduces(MergeOptions options = {});

}  // namespace lockstep::passes
