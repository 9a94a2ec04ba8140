// Recomputes values if keeping them takes too much memory: in a training step the activations, which the forward pass
// computes early and the backward pass reads late.
//
//   [1] convolution -> %a              [1] convolution -> %a
//   [2] relu %a -> %b                  [2] relu %a -> %b
//   …   reads %b                 ==>   …   reads %b, for the last time
//   [9] … reads %a, %b                 [8] relu %a -> %b'
//                                      [9] … reads %a, %b'
//
// A recomputed value has the same bits, because the same kernel reads the same values. The choice of values follows
// "Dynamic Tensor Rematerialization" (Kirisame et al., 2021), for a program whose future is known. The program is
// walked in order, with a budget for live memory. When the budget is exceeded, the value is dropped whose recomputation
// takes the least time in relation to its bytes and to the time until it is read again. A dropped value that is read is
// recomputed, with all values that it needs.
//
// Only temporaries in the arena are dropped, no operands or results of collectives, and no value whose kernel read a
// state that has been updated since.

#pragma once

#include <cstdint>

#include "backends/planning/program.h"

namespace lockstep {

struct Rematerialization {
  bool fits = false;   // the arena has at most the allowed bytes
  uint64_t whole = 0;  // the arena of the original program
  uint64_t least = 0;  // the smallest arena that was found; computed only if `whole` does not fit
  Recomputation work;  // of recomputation
};

// Changes `program`, after BindResults and before ReuseOperands, so that its arena takes at most `bytes`, with the plan
// of the largest budget that achieves this. If none does, uses the smallest arena that was found. A program whose arena
// fits is not changed.
Rematerialization Rematerialize(Program& program, uint64_t bytes);

}  // namespace lockstep
