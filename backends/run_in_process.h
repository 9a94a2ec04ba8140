// Runs a graph on a backend with all ranks in this process, each on a thread with its own executable and executor. The
// signature is the interpreter's, for comparing the two in tests and lockstep-run.

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

// Calls f with each rank's communicator, each on its own thread, and waits for all. A rank that returns an error aborts
// its communicator. Returns the error of the rank that failed first; `all`, if given, receives the status of each rank.
absl::Status ForEachRank(int ranks, const std::function<absl::Status(Communicator& communicator)>& f,
                         std::vector<absl::Status>* all = nullptr);

// Runs once on one rank. `inputs` are the values of graph.inputs(), including states; the returned tensors are those of
// graph.results(), including next values of states.
absl::StatusOr<std::vector<Tensor>> RunOnce(Executor& executor, const Graph& graph, const std::vector<Tensor>& inputs);

// Inputs are inputs[rank][i], and results likewise, as in core/interpreter.h. `graph` is a rank's program, with its
// mesh; its inputs need not be split, because each rank's inputs are given.
absl::StatusOr<std::vector<std::vector<Tensor>>> RunInProcess(const Graph& graph, const Backend& backend,
                                                              const std::vector<std::vector<Tensor>>& inputs,
                                                              const CompileOptions& options);

// Runs several times after one compilation: inputs[run][rank][i].
absl::StatusOr<std::vector<std::vector<std::vector<Tensor>>>> RunSeveralInProcess(
    const Graph& graph, const Backend& backend, const std::vector<std::vector<std::vector<Tensor>>>& inputs,
    const CompileOptions& options);

}  // namespace lockstep
