// Replaces collectives of which each rank uses only its own slice. An all_reduce becomes a reduce_scatter, which sends
// half of the bytes. The slice that a rank takes of a gathered value becomes the slice that it contributed:
//
//   %r = all_reduce %x {axis=data, kind=sum} : f32[4,3]
//   %s = shard %r {axis=data, dim=0} : f32[4,3] split(0)
//   %g = all_gather %y {axis=data, dim=0} : f32[4,3]
//   %t = shard %g {axis=data, dim=0} : f32[4,3] split(0)
//   %u = add %s, %t : f32[4,3] split(0)
// becomes
//   %s = reduce_scatter %x {axis=data, dim=0, kind=sum} : f32[4,3] split(0)
//   %u = add %s, %y : f32[4,3] split(0)
//
// `distribute` makes the first pair if an op that needs a whole sum is followed by an op that needs a slice, such as
// between two weights that are both split along the dimension that they sum over. The second pair occurs in programs
// with collectives written by hand.
//
// An all_reduce stays if anything else uses it (results of the graph count, dead nodes do not), if its shards differ in
// axis or dimension, or if it has a wire, which rounds: a reduce_scatter has no wire. Collectives of several operands
// (buckets) stay. Both collectives reduce in rank order, so no bit changes.

#pragma once

#include "passes/pass.h"

namespace lockstep::passes {

Pass FormReduceScatters();

}  // namespace lockstep::passes
