// Turns each collective of a program into a start and a wait, and gives the operands of all_reduces their places in
// buckets.
//
//   [4] matmul -> %dw          [4] matmul -> %dw, in bucket 0
//   [5] sum -> %db             [5] sum -> %db, in bucket 0+4096
//   [6] conv -> %dv     ==>        all_reduce.start bucket 0            complete here, after [5]
//   [7] all_reduce %dw, %db    [6] conv -> %dv
//   [8] sgd %w, %dw'               all_reduce.wait bucket 0             before the first use
//                              [8] sgd %w, %dw'
//
// Instructions and collectives keep their order. An operand is copied into its bucket only where it cannot live there:
// it is no temporary, is in another bucket, or is read after the start.

#pragma once

#include "backends/planning/program.h"
#include "core/status.h"

namespace lockstep {

void ScheduleCollectives(Program& program);

}  // namespace lockstep
