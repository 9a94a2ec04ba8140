// Lets a kernel write its result over an operand that nobody needs afterwards, where the kernel says that it may:
//
//   llvm.fusion reads %z, %b writes %h     ==>     %h is another name for the bytes of %z
//
// What is written is then in the cache already, and the arena is smaller. After BindResults: what lies in a bucket, a
// state or a result stays there.

#pragma once

#include "backends/planning/program.h"

namespace lockstep {

void ReuseOperands(Program& program);

}  // namespace lockstep
