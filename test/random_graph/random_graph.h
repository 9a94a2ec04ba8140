// Random small graphs, for tests that run a program before and after a change that must not change its meaning. A seed
// gives the same graph and inputs on every machine.
//
// Every node is evaluated when it is made, and kept only if its values are tame: finite, not large, and far from points
// where rounding would be amplified (a division by almost zero, a comparison of almost equal numbers). So results can
// be compared with a tolerance. Some floats are exact, as are the results of moving, comparing or adding them; among
// these there are ties.
//
// Every op with rows in the op cases is drawn, except those for which WhyNotDrawn of op_nodes.h gives a reason.

#pragma once

#include <cstdint>
#include <vector>

#include "core/graph.h"
#include "core/tensor.h"

namespace lockstep {

struct RandomGraphOptions {
  int min_nodes = 3, max_nodes = 24;
  int64_t max_extent = 4;  // of a dimension
  // If not 0: the first extent of many values. Most inputs with this extent are split along it; states are not.
  int64_t batch = 0;
  // If not 0, at most max_extent: many inputs and states are split along the axis `model` of this many ranks, along a
  // dimension that it divides. An input that is split along `data` is split along another dimension.
  int64_t model = 0;
  // If not 0: the number of ranks of the axis `data`, which divides the batch. Some batch normalisations of inputs then
  // have statistics per rank.
  int64_t data = 0;
};

struct RandomProgram {
  Graph graph;
  std::vector<Tensor> inputs;
};

RandomProgram MakeRandomProgram(uint64_t seed, const RandomGraphOptions& options = {});

}  // namespace lockstep
