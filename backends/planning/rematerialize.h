// Computes values again where keeping them takes too much memory: of a training step the activations, which the forward
// pass computes early and the backward pass reads late.
//
//   [1] convolution -> %a              [1] convolution -> %a
//   [2] relu %a -> %b                  [2] relu %a -> %b
//   …   reads %b                 ==>   …   reads %b, for the last time
//   [9] … reads %a, %b                 [8] relu %a -> %b'
//                                      [9] … reads %a, %b'
//
// What is computed again has the bits that it had: it is the same kernel, of the same values. Which values go is
// decided as "Dynamic Tensor Rematerialization" does (Kirisame et al., 2021), for a program whose future is known: the
// program is walked in order, with a budget for what is in memory at once; where it is exceeded, that value goes whose
// recomputation takes least time for its bytes and for the time until it is read again; and what is read and has gone
// is computed, with all that it needs.
//
// Only temporaries of the arena go, never what a collective touches, and nothing whose kernel read a state that has
// been updated since.

#pragma once

#include <cstdint>

#include "backends/planning/program.h"

namespace lockstep {

struct Rematerialization {
  bool fits = false;   // whether the arena takes at most the bytes that it may
  uint64_t whole = 0;  // the arena of the program as it was
  uint64_t least = 0;  // the smallest arena that was found; looked for only if `whole` does not fit
  Recomputation work;  // what is computed again
};

// Changes `program`, after BindResults and before ReuseOperands, so that its arena takes at most `bytes` if that can
// be, by the plan of the largest budget that comes to that; else so that it takes as little as was found. A program
// whose arena fits stays as it is.
Rematerialization Rematerialize(Program& program, uint64_t bytes);

}  // namespace lockstep
