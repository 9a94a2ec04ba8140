// Groups elementwise nodes, what feeds them cheaply and the reductions that they feed into nodes of op `fusion`, each
// of which a backend compiles to one loop: values inside a group never reach memory.
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
// Which nodes share a loop is decided in fusion_groups.h. Broadcasts, splats and iotas are copied into every body that
// reads them. Collectives keep their order, and what they take is not held up by what comes after it.

#pragma once

#include <cstdint>
#include <functional>

#include "passes/pass.h"

namespace lockstep::passes {

struct FusionOptions {
  int64_t max_nodes = 64;     // of a body, copies not counted
  int64_t max_operands = 32;  // of a fusion
  int64_t max_results = 8;
  // Loops that read one value of at least so many elements become one, though neither needs the other.
  int64_t min_shared_elements = 4096;
  // The longest row (elements) of a loop that reduces its rows and then computes with them again (softmax).
  int64_t max_row = 65536;
  // Whether the target makes a loop of a `fusion` node; if it does not, the nodes stay as they are. Empty: of every
  // one.
  std::function<bool(const Node&)> supports;
};

Pass FuseElementwise(FusionOptions options = {});

}  // namespace lockstep::passes
