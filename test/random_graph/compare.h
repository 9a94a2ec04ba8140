// Says whether passes keep the meaning of a program, and makes a program that shows that they do not as small as it
// can. For the tests of random graphs.

#pragma once

#include <functional>
#include <map>
#include <string>
#include <vector>

#include "core/status.h"
#include "passes/pass.h"
#include "test/random_graph/random_graph.h"

namespace lockstep {

// Whether `found` are the program's results, up to the rounding that the coarsest dtype in the graph explains. The
// oracle is the interpreter on the graph as it is.
absl::Status CheckResults(const RandomProgram& program, const std::vector<Tensor>& found);

// The program without a mesh that gives on one rank what `graph`, distributed over the mesh, gives: batch
// normalisations whose statistics are those of each rank have as many groups as ranks share their x. Of those each x is
// an input.
Graph AsOnRanks(const Graph& graph, const Mesh& mesh);

// Runs the program on the interpreter as it is and after the passes. An error says what differs: a result by more than
// the rounding of the coarsest dtype in the graph explains, what the passes or the verifier refuse, or the text form.
// `changed` (may be null) is set if a pass changed the graph.
absl::Status CheckPasses(const RandomProgram& program, const std::vector<passes::Pass>& passes,
                         bool* changed = nullptr);

// The same for passes among which is distribute: after each pass that changed the graph, the results of all its ranks
// are compared with those of the one rank of the program as it is (AsOnRanks). `num_changed` (may be null): how often
// each pass changed a graph. After the first `num_known` passes nothing is compared.
absl::Status CheckOnRanks(const RandomProgram& program, const std::vector<passes::Pass>& passes,
                          std::map<std::string, int>* num_changed = nullptr, size_t num_known = 0);

// Removes results and nodes, as long as `fails` says of what is left that it still fails. A node is removed by putting
// an input of the same value in its place, or by making a result of what the only result is computed from.
RandomProgram Shrink(const RandomProgram& program, const std::function<bool(const RandomProgram&)>& fails);

// Writes the program's text, with the list of passes as a golden test has it, and the inputs as comments. Returns the
// path.
std::string WriteReproducer(const RandomProgram& program, const std::string& passes, const std::string& name);

}  // namespace lockstep
