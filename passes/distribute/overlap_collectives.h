// Orders the graph so that communication overlaps with computation. Each collective comes as soon as its operands are
// computed. The consumers of its results come as late as possible, in the order in which the collectives complete.
//
//   %g2 = matmul …                                 %g2 = matmul …
//   %g1 = matmul …                                 %r2 = all_reduce %g2 {bucket=0}      starts here
//   %r1 = all_reduce %g1 {bucket=1}        ==>     %g1 = matmul …
//   %r2 = all_reduce %g2 {bucket=0}                %r1 = all_reduce %g1 {bucket=1}
//   %w1 = sgd %w, %r1                              %v1 = sgd %v, %r2                    waits for bucket 0 alone
//   %v1 = sgd %v, %r2                              %w1 = sgd %w, %r1
//
// A transfer to one rank, such as between the stages of a pipeline, is on the critical path of that rank: its consumers
// are not delayed.
//
// The order is the same on all ranks, since it depends on the graph alone. All later phases keep the order of
// collectives.

#pragma once

#include "passes/pass.h"

namespace lockstep::passes {

Pass OverlapCollectives();

}  // namespace lockstep::passes
