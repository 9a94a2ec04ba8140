// Turns the local program of V virtual ranks into that of n ranks, each of which runs the V/n consecutive virtual ranks
// r*V/n, …, (r+1)*V/n-1. Each kernel keeps the shapes that it has with V ranks, and each sum over the virtual ranks is
// added along the same binary tree. So all n compute the same bits (docs/decisions/0058).
//
//   mesh {data=4}
//   local graph @f(%x: f32[1,3] split(0), %w: f32[3,2]) -> (g: f32[1,2]) {
//     %z = matmul %x, %w : f32[1,2] partial(sum)
//     %g = all_reduce %z {axis=data, kind=sum} : f32[1,2]
//     return %g
//   }
// becomes for two ranks, without the reshapes
//   mesh {data=2}
//   local graph @f(%x: f32[2,3] split(0), %w: f32[3,2]) -> (g: f32[1,2]) {
//     %x/0 = slice %x {start=[0,0], limit=[1,3], stride=[1,1]} : f32[1,3] split(0)
//     %x/1 = slice %x {start=[1,0], limit=[2,3], stride=[1,1]} : f32[1,3] split(0)
//     %z/0 = matmul %x/0, %w : f32[1,2] partial(sum)
//     %z/1 = matmul %x/1, %w : f32[1,2] partial(sum)
//     %s = add %z/0, %z/1 : f32[1,2] partial(sum)
//     %t = all_gather %s {axis=data, dim=0} : f32[2,2]
//     %g = add the two rows of %t : f32[1,2]
//     return %g
//   }
//
// A value that differs between virtual ranks has V/n copies. A replicated value has one. A large sum travels in slices,
// each of which one rank adds (all_to_all, all_gather). With n = 1 the result has no mesh.
//
// Ranks may have different numbers of virtual ranks. A rank then adds each subtree that it has whole, such as ranks 0
// to 3 and rank 4 of 8, and sends as many terms as the rank with most subtrees, of which some are zeros that no one
// adds.

#pragma once

#include <cstdint>
#include <functional>
#include <vector>

#include "passes/pass.h"

namespace lockstep::passes {

struct VirtualRanks {
  int64_t ranks = 1;            // that run the program; divides the number of virtual ranks, if `counts` is empty
  std::vector<int64_t> counts;  // the virtual ranks of each rank, at least 1; empty: V/n
  int64_t rank = 0;             // whose program is made, if there are counts
  // Sums of at least so many bytes travel in slices.
  int64_t min_bytes_of_slices = 1 << 15;
  // Returns true if the target can compile this `fusion` node to a loop. Empty: it can compile every one.
  std::function<bool(const Node&)> supports;
};

// Does nothing to a graph that is not local. Returns an error if the mesh has another axis than `data`, or if a value
// or collective along `data` has no meaning for several virtual ranks of one rank: values at one rank, local inputs and
// results, and collectives other than all_reduce, reduce_scatter and all_gather.
Pass FoldVirtualRanks(VirtualRanks options);

}  // namespace lockstep::passes
