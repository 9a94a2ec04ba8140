// Lets a kernel overwrite an operand that is not needed afterwards with its result, if the kernel allows it:
//
//   llvm.fusion reads %z, %b writes %h     ==>     %h is another name for the bytes of %z
//
// The written memory is then already in the cache, and the arena is smaller. Runs after BindResults: storages in a
// bucket, a state or a result keep their places.

#pragma once

#include "backends/planning/program.h"

namespace lockstep {

void ReuseOperands(Program& program);

}  // namespace lockstep
