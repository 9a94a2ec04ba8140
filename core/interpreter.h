// Runs a graph by the ops' reference meanings: the oracle for every backend and for every distributed test. All ranks
// of the graph's mesh run in lock step in one thread: each value has one tensor per rank, nodes are evaluated one by
// one, and a collective is a pure function over the ranks' tensors. Slow, deterministic.

#pragma once

#include <vector>

#include "core/graph.h"
#include "core/status.h"
#include "core/tensor.h"

namespace lockstep {

// inputs[rank][i] is the value of graph.inputs()[i] on that rank; the result likewise for graph.results(). There are
// graph.num_ranks() ranks: those of the mesh for a local graph, else one. So a placed graph is the one-rank program
// that it stands for, in which collectives change nothing; ToLocalTypes gives what its ranks run. What is at one rank
// is computed there alone; others have NaN in its place, or zeros. Errors name the input, or the op with its source (a
// label out of range).
absl::StatusOr<std::vector<std::vector<Tensor>>> Interpret(const Graph& graph,
                                                           const std::vector<std::vector<Tensor>>& inputs);

// The same for a graph of one rank.
absl::StatusOr<std::vector<Tensor>> InterpretOneRank(const Graph& graph, const std::vector<Tensor>& inputs);

// Evaluates one node of an op that has Eval. Used by the interpreter and by constant folding.
absl::StatusOr<std::vector<Tensor>> EvaluateNode(const Node& node, const std::vector<const Tensor*>& operands);

}  // namespace lockstep
