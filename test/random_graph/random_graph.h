// Random small graphs, for tests that run a program before and after something that must not change its meaning. A seed
// gives the same graph and inputs on every machine.
//
// Every node is evaluated as it is made, and is only kept if its values are tame: finite, not large, and far from where
// rounding would be amplified (a division by almost zero, a comparison of almost equal numbers). So results may be
// compared with a tolerance. Some floats are exact, and so are what moves, compares or adds them: among these there are
// ties.
//
// Every op that has rows of op cases is drawn, but for those that WhyNotDrawn of op_nodes.h says.

#pragma once

#include <cstdint>
#include <vector>

#include "core/graph.h"
#include "core/tensor.h"

namespace lockstep {

struct RandomGraphOptions {
  int min_nodes = 3, max_nodes = 24;
  int64_t max_extent = 4;  // of a dimension
  // If not 0: the first extent of many values. Most inputs of this extent are split along it, states are not.
  int64_t batch = 0;
  // If not 0, at most max_extent: many inputs and states are split along the axis `model` of so many ranks, along a
  // dimension that it divides; an input that is split along `data` along another one.
  int64_t model = 0;
  // If not 0: the ranks of the axis `data`, which divide the batch. Some batch normalisations of inputs then have the
  // statistics of each rank.
  int64_t data = 0;
};

struct RandomProgram {
  Graph graph;
  std::vector<Tensor> inputs;
};

RandomProgram MakeRandomProgram(uint64_t seed, const RandomGraphOptions& options = {});

}  // namespace lockstep
