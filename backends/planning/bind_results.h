// Gives results and next values of states their buffers. The kernel that computes a result writes into the result's
// buffer, and the kernel that computes a state's next value overwrites the state, if the old value is not needed any
// more:
//
//   sgd %w, %g -> %w1      ==>     sgd %w, %g -> %w1 in state w
//
// In other cases a copy at the end writes the buffer: if the value is an input, a state or a constant, is in a bucket
// or has two names; if the old value is still read; or if a later instruction may refuse the caller's data, because a
// call that fails with this error must not change the states.

#pragma once

#include "backends/planning/program.h"

namespace lockstep {

void BindResults(Program& program);

}  // namespace lockstep
