// The roofline of a program: the least time that each of its steps takes on a machine, by the operations that it does
// and by the bytes that it reads and writes (Williams, Waterman, Patterson, "Roofline: an insightful visual performance
// model", CACM 2009). It needs no such machine. Nothing here is timed. What a cache holds from the step before is read
// faster than from memory, so that small steps may take less time than this.

#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "runtime/execution/executable.h"

namespace lockstep {

// A step without communication.
struct StepFloor {
  const StepInfo* step = nullptr;  // of the executable
  double by_operations = 0;        // seconds
  double by_bytes = 0;             // seconds
  double seconds() const { return by_operations > by_bytes ? by_operations : by_bytes; }
};

// Sums over some steps.
struct FloorSum {
  std::string name;  // of the kind ("cublaslt.matmul") or of the layer ("blocks.3.attention")
  int64_t steps = 0;
  double operations = 0, bytes = 0;
  double seconds = 0;        // of the steps, one after the other
  double by_operations = 0;  // the part of `seconds` in steps whose operations take longer than their bytes
};

struct Roofline {
  Ceilings ceilings;
  std::vector<StepFloor> steps;  // kernels and copies, in order
  std::vector<FloorSum> kinds;   // by name of step; the largest sum first
  std::vector<FloorSum> layers;  // by layer of the model; the largest sum first
  FloorSum all;                  // of all steps
  double least_bytes = 0;        // Executable::least_bytes

  // Returns the sums as a table, and all steps if `with_steps`, the slowest first.
  std::string ToString(bool with_steps) const;
};

// `executable` must outlive the result. Names of layers have at most `depth` parts.
Roofline RooflineOf(const Executable& executable, const Ceilings& ceilings, int depth = 2);

}  // namespace lockstep
