// Transfers no more than ranks use. An all_reduce of which each rank uses its slice alone becomes a reduce_scatter,
// which is half of it; the slice of a gathered value that a rank takes is the one that it gave:
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
// distribute leaves the first pair where an op that needs a whole sum is then computed for a slice alone, such as what
// is between two weights that are both split along the dimension that they sum over; the second is for people who write
// collectives by hand.
//
// An all_reduce stays if anything else uses it (dead nodes do not count, results of the graph do), if its shards differ
// in axis or dimension, if it has a wire, which rounds and of which a reduce_scatter has none, or if it, or the
// all_gather, is a bucket of several operands. Both collectives reduce in rank order: no bit changes.

#pragma once

#include "passes/pass.h"

namespace lockstep::passes {

Pass FormReduceScatters();

}  // namespace lockstep::passes
