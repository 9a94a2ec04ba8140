// Random inputs of a program in exact arithmetic. Any thread.

#pragma once

#include <cstdint>
#include <vector>

#include "core/graph.h"
#include "verify/exact_tensor.h"

namespace lockstep::verify {

// A tensor of random numbers, or of random integers from 0 to `limit` - 1, that follow from `seed`.
ExactTensor RandomTensor(const TensorType& type, int64_t limit, uint64_t seed);

// For each input of the graph: the value of a setting; random numbers; or random integers that all ops accept which use
// them as positions or classes. The input `rows` of a step with batches that need not be full
// (passes/training/uneven.h) consists of ones and zeros.
std::vector<ExactTensor> RandomInputs(const Graph& graph, uint64_t seed);

}  // namespace lockstep::verify
