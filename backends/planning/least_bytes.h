// The bytes that the kernels of a program would read and write at least in a schedule that joins loops as far as
// possible: what the program's own traffic is compared with (backends/roofline.h).
//
// The kernels that are no loops (products, convolutions, pools, sorting, libraries' kernels) stay as they are: each
// reads every operand once and writes every result once. A loop (elementwise ops, reductions, movements, and fusions of
// them) may be computed together with others that no such kernel separates from it. Kernels therefore have levels: the
// level of a kernel is the largest number of kernels that are no loops on a path to it. All loops of one level count as
// one: it reads each value that is there before it once, and writes each value that is needed after it once; a value
// that only the loops of its level need is never in memory.
//
// This is the traffic of one pass over the data, without caches that outlive a kernel, and without values that are
// recomputed or compressed. A reduction whose result the same level needs for all elements, such as the mean in a
// normalisation, takes a second pass unless the row fits in a cache, so that real schedules are above it.

#pragma once

#include <cstdint>

#include "backends/planning/program.h"

namespace lockstep {

// Requires a program whose instructions are in an order in which they can run. Collectives and servers' transfers count
// as kernels that are no loops; their own bytes are not counted.
uint64_t LeastBytes(const Program& program);

}  // namespace lockstep
