// The roofline of a program: the least time that each of its steps takes on a machine, by the operations that it does
// and by the bytes that it reads and writes (Williams, Waterman, Patterson, "Roofline: an insightful visual performance
// model", CACM 2009). It needs no such machine, and nothing here is timed. Measured times of the steps can be compared
// with it. What a cache holds from the step before is read faster than from memory, so that small steps may take less
// time than this.

#pragma once

#include <cstddef>
#include <cstdint>
#include <span>
#include <string>
#include <vector>

#include "runtime/execution/executable.h"

namespace lockstep {

// A step without communication.
struct StepFloor {
  const StepInfo* step = nullptr;  // of the executable
  std::string layer;               // of the model
  double by_operations = 0;        // seconds
  double by_bytes = 0;             // seconds
  double measured = 0;             // seconds of a call; 0 if not measured
  double lost = 0;  // measured - seconds(), which is negative if it is faster than its least time; 0 if not measured
  double seconds() const { return by_operations > by_bytes ? by_operations : by_bytes; }
};

// Sums over some steps.
struct FloorSum {
  std::string name;  // of the kind ("cublaslt.matmul") or of the layer ("blocks.3.attention")
  int64_t steps = 0;
  double operations = 0, bytes = 0;
  double seconds = 0;             // the least ones of the steps, one after the other
  double measured = 0, lost = 0;  // seconds
  double by_operations = 0;       // the part of `seconds` in steps whose operations take longer than their bytes
};

struct Roofline {
  Ceilings ceilings;
  bool is_measured = false;      // the steps have measured times
  std::vector<StepFloor> steps;  // kernels and copies, in order
  std::vector<FloorSum> kinds;   // by name of step; the one that lost most first, or with the largest least time
  std::vector<FloorSum> layers;  // by layer of the model; in the same order
  FloorSum all;                  // of all steps
  double least_bytes = 0;        // Executable::least_bytes

  // Returns the sums as a table, and then at most `most_steps` steps: those that lost most first or, if they are not
  // measured, those with the longest least times.
  std::string ToString(size_t most_steps) const;
};

// `executable` must outlive the result. Names of layers have at most `depth` parts. `measured` has the seconds of all
// steps of the executable in a call, communication included, in order. Without any above 0, nothing is measured.
Roofline RooflineOf(const Executable& executable, const Ceilings& ceilings, int depth = 2,
                    std::span<const double> measured = {});

}  // namespace lockstep
