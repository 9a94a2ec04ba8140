// Checks that passes keep the meaning of a program, and reduces a program for which they do not. For the tests of
// random graphs.

#pragma once

#include <functional>
#include <map>
#include <string>
#include <vector>

#include "core/status.h"
#include "passes/pass.h"
#include "test/random_graph/random_graph.h"

namespace lockstep {

// Checks that `found` are the program's results, up to the rounding of the coarsest dtype in the graph. The oracle is
// the interpreter on the unchanged graph.
absl::Status CheckResults(const RandomProgram& program, const std::vector<Tensor>& found);

// The program without a mesh that gives on one rank what `graph` gives distributed over the mesh: batch normalisations
// with statistics per rank get as many groups as ranks divide their x, which must be an input.
Graph AsOnRanks(const Graph& graph, const Mesh& mesh);

// Runs the program on the interpreter unchanged and after the passes. Returns an error if a result differs by more than
// the rounding of the coarsest dtype in the graph, if the passes or the verifier fail, or if the text form does not
// read back. Sets `changed` (may be null) if a pass changed the graph.
absl::Status CheckPasses(const RandomProgram& program, const std::vector<passes::Pass>& passes,
                         bool* changed = nullptr);

// The same for passes that include distribute. After each pass that changed the graph, compares the results of all
// ranks with those of the unchanged program on one rank (AsOnRanks). Adds to `num_changed` (may be null) how often each
// pass changed a graph. After the first `num_known` passes nothing is compared.
absl::Status CheckOnRanks(const RandomProgram& program, const std::vector<passes::Pass>& passes,
                          std::map<std::string, int>* num_changed = nullptr, size_t num_known = 0);

// Removes results and nodes as long as `fails` returns true for the rest. A node is removed by replacing it with inputs
// of the same values, or by replacing the only result with one of its operands.
RandomProgram Shrink(const RandomProgram& program, const std::function<bool(const RandomProgram&)>& fails);

// Writes the program's text, with the list of passes in the form of a golden test, and the inputs as comments. Returns
// the path.
std::string WriteReproducer(const RandomProgram& program, const std::string& passes, const std::string& name);

}  // namespace lockstep
