// Turns each pull from parameter servers into a start and a wait. It starts as soon as the old value is not read any
// more, so that the new value may overwrite it, and is waited for before its first use, or at the end of the run.
//
//   [4] push %dw                       [4] push %dw
//   [5] pull -> %w.next         ==>    [6] matmul %dz, %w            the last reader of the old %w
//   [6] matmul %dz, %w                     pull.start -> %w.next
//   [7] push %db                       [7] push %db
//                                          pull.wait -> %w.next
//
// No rank waits for ever: a pull waits for the pushes of all workers. They run the same steps and have pushed before
// they reach this wait.

#pragma once

#include "backends/planning/program.h"

namespace lockstep {

void SchedulePulls(Program& program);

}  // namespace lockstep
