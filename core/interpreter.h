// Runs a graph by the ops' reference meanings. It is the oracle for every backend and every distributed test. All ranks
// of the graph's mesh run in lock step in one thread: each value has one tensor per rank, nodes are evaluated one by
// one, and a collective is a pure function of the ranks' tensors. Slow, deterministic.

#pragma once

#include <vector>

#include "core/graph.h"
#include "core/status.h"
#include "core/tensor.h"

namespace lockstep {

// inputs[rank][i] is the value of graph.inputs()[i] on that rank; the result is indexed likewise for graph.results().
// There are graph.num_ranks() ranks: those of the mesh for a local graph, else one. A placed graph therefore runs as
// its one-rank program, in which collectives change nothing; ToLocalTypes gives the program of its ranks. A value
// placed at(rank) is computed on that rank only; the other ranks have NaN, or zeros, instead. An error names the input,
// or the op with its source (such as for a label out of range).
absl::StatusOr<std::vector<std::vector<Tensor>>> Interpret(const Graph& graph,
                                                           const std::vector<std::vector<Tensor>>& inputs);

// Interprets a graph of one rank.
absl::StatusOr<std::vector<Tensor>> InterpretOneRank(const Graph& graph, const std::vector<Tensor>& inputs);

// Evaluates one node. Requires an op that has Eval. Used by the interpreter and by constant folding.
absl::StatusOr<std::vector<Tensor>> EvaluateNode(const Node& node, const std::vector<const Tensor*>& operands);

}  // namespace lockstep
