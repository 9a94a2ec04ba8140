// Runs a graph in exact arithmetic, as core/interpreter.h runs it in floats: all ranks in lock step, in one thread.

#pragma once

#include <vector>

#include "core/graph.h"
#include "core/status.h"
#include "verify/meaning.h"

namespace lockstep::verify {

// The tensors of a value, one for each rank of the graph.
using RankTensors = std::vector<ExactTensor>;
using ExactValues = std::unordered_map<Value, RankTensors, ValueHash>;

// The values of all inputs and nodes. inputs[i][rank] is the value of graph.inputs()[i] on that rank. A value that is
// placed at another rank consists of NaN, or zeros, on this one. An error names the op.
absl::StatusOr<ExactValues> RunExactly(const Graph& graph, const std::vector<RankTensors>& inputs,
                                       Assumptions& assumptions);

// The results of a graph of one rank.
absl::StatusOr<std::vector<ExactTensor>> RunExactlyOnOneRank(const Graph& graph, const std::vector<ExactTensor>& inputs,
                                                             Assumptions& assumptions);

}  // namespace lockstep::verify
