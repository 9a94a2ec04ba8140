// Which step of a program computes what ranks add up, and which steps use it: with the seconds of steps this says when
// each gradient is ready, and how long its update takes. A pure function; any thread.

#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "runtime/execution/executable.h"

namespace lockstep {

// A tensor that an all_reduce or a reduce_scatter takes, alone or in a bucket. Steps are numbers in the list.
struct ReducedTensor {
  std::string name;      // of the value before, without the '%'
  int64_t bytes = 0;     // of it, on this rank
  int computed_by = -1;  // the last step that writes it; -1: none, it is an input
  int waited_by = -1;    // the step that waits for its collective
  // The kernels and copies that read what came of it, in order, but for those that read an earlier tensor's result too.
  std::vector<int> used_by;

  bool operator==(const ReducedTensor&) const = default;
};

// In the order in which the collectives start, and as buckets have them.
std::vector<ReducedTensor> ReducedTensors(const StepList& steps);

}  // namespace lockstep
