// The kernel of a loop with a body. It runs the body's program, which is lowered, planned and certified like other
// programs, once per iteration. scan.cc creates such kernels.

#pragma once

#include <cstdint>
#include <vector>

#include "backends/cpu/emit_context.h"

namespace lockstep::cpu {

// The destination of a result of the body's program: its place in the stack if it is stacked; otherwise, if it is
// carried, alternately the kernel's result and scratch memory; otherwise scratch memory.
struct Destination {
  uint64_t bytes = 0;
  std::vector<size_t> stacks;  // writes of the kernel
  int carried = -1;            // write of the kernel
};

// A sum over iterations of a result of the body's program.
struct LoopSum {
  size_t write = 0;  // of the kernel
  size_t program = 0;
  TensorType type;
};

// The kernel's reads, and the body's inputs: first carried values, then scanned values and constants in any order. The
// kernel's writes: first carried values.
struct LoopSpec {
  int64_t length = 0;
  bool reverse = false;
  size_t carried = 0;
  std::vector<uint64_t> input_bytes;      // by input of the body
  std::vector<bool> is_scanned;           // the same
  std::vector<Destination> destinations;  // by result of the body's program
  std::vector<size_t> next;               // by carried value: the result of the program that is its next value
  std::vector<LoopSum> sums;
  int threads = 1;
};

// The results of `body` are spec.destinations. The kernel's scratch memory includes the arena of the body's program.
absl::StatusOr<Kernel> LoopKernel(const Graph& body, LoopSpec spec, const EmitContext& c);

}  // namespace lockstep::cpu
