// Random inputs for tests, tools and benchmarks that run a graph: the same values for the same seed on every machine.

#pragma once

#include <random>
#include <vector>

#include "core/graph.h"
#include "core/tensor.h"

namespace lockstep {

// Elements uniform in [low, high]; those of integer dtypes are whole, with both ends.
Tensor RandomTensor(const TensorType& type, std::mt19937_64& random, double low, double high);

// One tensor for each input of `graph`, states among them, for each rank of its mesh: floats in [-1, 1], integers from
// 0 to 4. Ranks that hold the same part of an input get equal values: they differ along no axis but those along which
// it is replicated. Settings have their values.
std::vector<std::vector<Tensor>> RandomInputs(const Graph& graph, uint64_t seed = 1);

}  // namespace lockstep
