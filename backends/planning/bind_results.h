// Gives results and next values of states their buffers. The kernel that produces a result writes into the result's
// buffer, and the one that produces a state's next value writes over the state, if nobody needs the old value any more:
//
//   sgd %w, %g -> %w1      ==>     sgd %w, %g -> %w1 in state w
//
// Where that cannot be, a copy at the end does it: the value is an input, a state or a constant, lies in a bucket, has
// two names, or the old value is still read; or a later instruction may refuse the caller's data, as a call that ends
// with that error leaves the states as they were.

#pragma once

#include "backends/planning/program.h"

namespace lockstep {

void BindResults(Program& program);

}  // namespace lockstep
