// Runs a graph on a backend with all ranks in this process, each a thread with its own executable and executor. It has
// the interpreter's signature, for those who compare the two: tests and lockstep-run.

#pragma once

#include <functional>
#include <vector>

#include "backends/backend.h"
#include "backends/compile.h"
#include "core/graph.h"
#include "core/status.h"
#include "core/tensor.h"
#include "runtime/execution/executor.h"

namespace lockstep {

// Calls f with each rank's communicator, on a thread of its own, and waits for all. A rank that returns an error aborts
// its communicator. The error is that of the rank that failed first; each is in `all`, by rank, if that is given.
absl::Status ForEachRank(int ranks, const std::function<absl::Status(Communicator& communicator)>& f,
                         std::vector<absl::Status>* all = nullptr);

// One run of one rank. `inputs` are the values of graph.inputs(), states among them; the tensors that come back are
// those of graph.results(), next values of states among them.
absl::StatusOr<std::vector<Tensor>> RunOnce(Executor& executor, const Graph& graph, const std::vector<Tensor>& inputs);

// inputs[rank][i] and the results likewise, as in core/interpreter.h. `graph` is a rank's program, with its mesh; its
// inputs need not be split, as those of each rank are given.
absl::StatusOr<std::vector<std::vector<Tensor>>> RunInProcess(const Graph& graph, const Backend& backend,
                                                              const std::vector<std::vector<Tensor>>& inputs,
                                                              const CompileOptions& options);

// Several runs after one compilation: inputs[run][rank][i].
absl::StatusOr<std::vector<std::vector<std::vector<Tensor>>>> RunSeveralInProcess(
    const Graph& graph, const Backend& backend, const std::vector<std::vector<std::vector<Tensor>>>& inputs,
    const CompileOptions& options);

}  // namespace lockstep
