// Groups elementwise nodes, the cheap nodes that feed them, and the reductions that they feed into nodes of op
// `fusion`. A backend compiles each to one loop, so that values inside a group are never stored in memory.
//
//   %b1 = broadcast %b {dims=[1], shape=[32, 10]} : f32[32,10]
//   %s  = add %z, %b1 : f32[32,10]                                 ==>
//   %y  = tanh %s : f32[32,10]
//
//   %y = fusion %z, %b {body=graph @fused(%z: f32[32,10], %b: f32[10]) -> (y: f32[32,10]) {
//     %b1 = broadcast %b {dims=[1], shape=[32, 10]} : f32[32,10]
//     %s = add %z, %b1 : f32[32,10]
//     %y = tanh %s : f32[32,10]
//     return %y
//   }} : f32[32,10]
//
// fusion_groups.h decides which nodes share a loop. Broadcasts, splats and iotas are copied into every body that reads
// them. Collectives keep their order, and their operands are not delayed by later nodes.

#pragma once

#include <cstdint>
#include <functional>

#include "passes/pass.h"

namespace lockstep::passes {

struct FusionOptions {
  int64_t max_nodes = 64;     // of a body, without copies
  int64_t max_operands = 32;  // of a fusion
  int64_t max_results = 8;
  // Independent loops that read the same value of at least so many elements become one.
  int64_t min_shared_elements = 4096;
  // The longest row, in elements, of a loop that reduces its rows and then uses the result for each element (softmax).
  int64_t max_row = 65536;
  // Returns true if the target can compile this `fusion` node to a loop; otherwise the nodes stay as they are. Empty:
  // it can compile every one.
  std::function<bool(const Node&)> supports;
};

Pass FuseElementwise(FusionOptions options = {});

}  // namespace lockstep::passes
