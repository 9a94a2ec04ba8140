// Random inputs for tests, tools and benchmarks that run a graph. A seed gives the same values on every machine.

#pragma once

#include <random>
#include <vector>

#include "core/graph.h"
#include "core/tensor.h"

namespace lockstep {

// A tensor with elements uniform in [low, high]; for integer dtypes, integers including both ends.
Tensor RandomTensor(const TensorType& type, std::mt19937_64& random, double low, double high);

// One tensor for each input of `graph`, including states, for each rank of its mesh: floats in [-1, 1], integers from 0
// to 4. Ranks that hold the same part of an input, as FirstReplica defines it, get equal values. Settings have their
// values.
std::vector<std::vector<Tensor>> RandomInputs(const Graph& graph, uint64_t seed = 1);

}  // namespace lockstep
