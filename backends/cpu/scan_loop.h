// The kernel of a loop with a body: it runs the body's program, which is lowered, planned and certified like any other,
// once for each iteration. scan.cc makes such kernels.

#pragma once

#include <cstdint>
#include <vector>

#include "backends/cpu/emit_context.h"

namespace lockstep::cpu {

// A result of the body's program. If it is stacked, it is written there; else, if it is carried, into the kernel's
// result and scratch memory by turns; else into scratch memory.
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

// Reads of the kernel, and inputs of the body: what is carried first, then what is scanned and constants in any order.
// Writes of the kernel: what is carried first.
struct LoopSpec {
  int64_t length = 0;
  bool reverse = false;
  size_t carried = 0;
  std::vector<uint64_t> input_bytes;      // by input of the body
  std::vector<bool> is_scanned;           // the same
  std::vector<Destination> destinations;  // by result of the body's program
  std::vector<size_t> next;               // by carried value: the result of the program that it goes on as
  std::vector<LoopSum> sums;
  int threads = 1;
};

// Its results are spec.destinations. The kernel's scratch memory holds the arena of the body's program, among others.
absl::StatusOr<Kernel> LoopKernel(const Graph& body, LoopSpec spec, const EmitContext& c);

}  // namespace lockstep::cpu
