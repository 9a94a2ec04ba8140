// For tests: compiles a graph for the backend under test, runs it, and compares it with the interpreter.

#pragma once

#include <vector>

#include "backends/compile.h"
#include "core/graph.h"
#include "core/random_tensor.h"
#include "core/tensor.h"

namespace lockstep {

// Expects that the backend and the interpreter agree on every result of every rank: each element to `tolerance` times
// the largest magnitude of the result. `options.mesh` must be empty or the graph's mesh.
void ExpectAgreesWithInterpreter(const Graph& graph, const std::vector<std::vector<Tensor>>& inputs, double tolerance,
                                 const CompileOptions& options = {});

}  // namespace lockstep
