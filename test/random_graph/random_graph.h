// Random small graphs, for tests that run a program before and after something that must not change its meaning. A seed
// gives the same graph and inputs on every machine.
//
// Every node is evaluated as it is made, and is only kept if its values are tame: finite, not large, and far from where
// rounding would be amplified (a division by almost zero, a comparison of almost equal numbers). So results may be
// compared with a tolerance.

#pragma once

#include <cstdint>
#include <vector>

#include "core/graph.h"
#include "core/tensor.h"

namespace lockstep {

struct RandomGraphOptions {
  int min_nodes = 3, max_nodes = 24;
  int64_t max_extent = 4;  // of a dimension
  // If not 0: the first extent of many values. Most inputs of this extent are split along it; states are replicated.
  int64_t batch = 0;
};

struct RandomProgram {
  Graph graph;
  std::vector<Tensor> inputs;
};

RandomProgram MakeRandomProgram(uint64_t seed, const RandomGraphOptions& options = {});

}  // namespace lockstep
