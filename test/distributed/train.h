// Training on the interpreter, for the tests of this folder.

#pragma once

#include <cstdint>
#include <map>
#include <string>
#include <vector>

#include "core/graph.h"
#include "core/tensor.h"
#include "passes/pass.h"

namespace lockstep {

// The losses, and the final states of each rank.
struct History {
  std::vector<double> losses;
  std::vector<std::map<std::string, Tensor>> states;
};

// Trains `steps` steps over `ranks` ranks of a data axis, with the same data for any number of ranks: labels from 0 to
// 2, and small floats. `passes` run on the placed step. Failures are reported in the calling test.
History Train(const Graph& step, int64_t ranks, int steps, const std::vector<passes::Pass>& passes = {});

// The same over a mesh. Each rank has its part of split states.
History Train(const Graph& step, const Mesh& mesh, int steps, const std::vector<passes::Pass>& passes = {});

}  // namespace lockstep
