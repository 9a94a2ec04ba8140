// For tests: a graph compiled for the CPU and run, against the interpreter.

#pragma once

#include <string>
#include <string_view>
#include <vector>

#include "backends/compile.h"
#include "core/graph.h"
#include "core/tensor.h"

namespace lockstep {

// Uniform values in [-1, 1] for floats, 0 to 4 for integers; the same for each call with the same seed.
Tensor RandomTensor(const TensorType& type, uint64_t seed);

// Inputs for each rank of the graph's mesh: states and replicated inputs are equal on all ranks, the others differ.
std::vector<std::vector<Tensor>> RandomInputs(const Graph& graph, uint64_t seed = 1);

// Empty if each element of `actual` is within `tolerance` times the largest magnitude in `expected`; else what differs.
std::string Difference(const Tensor& actual, const Tensor& expected, double tolerance);

// Expects that the CPU backend and the interpreter agree on every result of every rank. `options.mesh` is the graph's.
void ExpectAgreesWithInterpreter(const Graph& graph, const std::vector<std::vector<Tensor>>& inputs, double tolerance,
                                 const CompileOptions& options = {});

}  // namespace lockstep
