// Says whether two graphs mean the same, on the interpreter: before and after a pass, on one rank and on the ranks of a
// mesh. For the golden tests and the tests of random graphs.

#pragma once

#include <string>
#include <vector>

#include "core/graph.h"
#include "core/status.h"
#include "core/tensor.h"
#include "passes/pass.h"

namespace lockstep {

// How far results may differ, relative to the largest element: the rounding of a few dozen ops of the coarsest dtype in
// the graph, or that travels.
double ToleranceOf(const Graph& graph);

// An error naming the element and both values if they differ by more. NaN, infinities and the sign of infinities must
// agree; zeros have the same sign if `signed_zeros`.
absl::Status CheckClose(const std::string& name, const Tensor& expected, const Tensor& found, double tolerance,
                        bool signed_zeros = false);

// What each rank of a local graph holds of the global values of its inputs.
std::vector<std::vector<Tensor>> SharesOfInputs(const Graph& graph, const std::vector<Tensor>& inputs);

// Whether each rank's results are its shares of `expected`. Results that are local have no global meaning, and are not
// compared.
absl::Status CheckShares(const Graph& graph, const std::vector<Tensor>& expected,
                         const std::vector<std::vector<Tensor>>& found, double tolerance);

// Whether the graph, in whichever form it is, gives of global values of its inputs what one rank gave: a placed one on
// one rank and, in local types, on all of them.
absl::Status CheckAgainstOneRank(const Graph& graph, const std::vector<Tensor>& inputs,
                                 const std::vector<Tensor>& expected, double tolerance);

// Runs both graphs on random inputs and compares what the pass promises to keep. Sets `num_compared` to how many
// tensors were compared: 0 for a pass that keeps nothing.
absl::Status CheckSameMeaning(const Graph& before, const Graph& after, passes::Keeps keeps, int* num_compared);

}  // namespace lockstep
