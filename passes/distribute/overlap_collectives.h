// Orders the graph so that communication runs beside computation: each collective comes as soon as its operands are
// computed, and what consumes its results comes as late as it can, in the order in which the collectives complete.
//
//   %g2 = matmul …                                 %g2 = matmul …
//   %g1 = matmul …                                 %r2 = all_reduce %g2 {bucket=0}      starts here
//   %r1 = all_reduce %g1 {bucket=1}        ==>     %g1 = matmul …
//   %r2 = all_reduce %g2 {bucket=0}                %r1 = all_reduce %g1 {bucket=1}
//   %w1 = sgd %w, %r1                              %v1 = sgd %v, %r2                    waits for bucket 0 alone
//   %v1 = sgd %v, %r2                              %w1 = sgd %w, %r1
//
// What one rank alone gets from another one is on the way of its computation, as the stages of a pipeline have it: its
// consumers are not put off.
//
// The order is the same on all ranks, since it depends on the graph alone. Every later stage keeps the order of
// collectives.

#pragma once

#include "passes/pass.h"

namespace lockstep::passes {

Pass OverlapCollectives();

}  // namespace lockstep::passes
