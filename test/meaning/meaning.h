// Compares the meaning of two graphs on the interpreter: before and after a pass, on one rank and on the ranks of a
// mesh. For the golden tests and the tests of random graphs.

#pragma once

#include <string>
#include <vector>

#include "core/graph.h"
#include "core/status.h"
#include "core/tensor.h"
#include "passes/pass.h"

namespace lockstep {

// The tolerance of results relative to the largest element: the rounding error of a few dozen ops in the coarsest dtype
// of the graph or of a wire.
double ToleranceOf(const Graph& graph);

// Returns an error that names the element and both values if they differ by more. NaN, infinities and the sign of
// infinities must agree; zeros must have the same sign if `signed_zeros`.
absl::Status CheckClose(const std::string& name, const Tensor& expected, const Tensor& found, double tolerance,
                        bool signed_zeros = false);

// The part of the global values of the inputs that each rank of a local graph has.
std::vector<std::vector<Tensor>> SharesOfInputs(const Graph& graph, const std::vector<Tensor>& inputs);

// Checks that each rank's results are its parts of `expected`. Results placed as `local` have no global meaning and are
// not compared.
absl::Status CheckShares(const Graph& graph, const std::vector<Tensor>& expected,
                         const std::vector<std::vector<Tensor>>& found, double tolerance);

// Checks that the graph, in any form, gives for the global values of its inputs the results that one rank gave. A
// placed graph is run on one rank and, in local types, on all ranks.
absl::Status CheckAgainstOneRank(const Graph& graph, const std::vector<Tensor>& inputs,
                                 const std::vector<Tensor>& expected, double tolerance);

// Runs both graphs on random inputs and compares what the pass promises to keep. Sets `num_compared` to the number of
// compared tensors: 0 for a pass that keeps nothing.
absl::Status CheckSameMeaning(const Graph& before, const Graph& after, passes::Keeps keeps, int* num_compared);

}  // namespace lockstep
