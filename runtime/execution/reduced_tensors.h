// Finds the step that computes each reduced tensor, and the steps that use it. With the seconds of steps, this shows
// when each gradient is ready and how long its update takes. A pure function; any thread.

#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "runtime/execution/executable.h"

namespace lockstep {

// A tensor that an all_reduce or a reduce_scatter takes, alone or in a bucket. Steps are numbers in the list.
struct ReducedTensor {
  std::string name;      // of the value before the reduction, without the '%'
  int64_t bytes = 0;     // on this rank
  int computed_by = -1;  // the last step that writes it; -1: none, because it is an input
  int waited_by = -1;    // the step that waits for its collective
  // The kernels and copies that read its result, in order, except those that also read an earlier tensor's result.
  std::vector<int> used_by;

  bool operator==(const ReducedTensor&) const = default;
};

// Returns the tensors in the order in which their collectives start, and in the order of their buckets.
std::vector<ReducedTensor> ReducedTensors(const StepList& steps);

}  // namespace lockstep
