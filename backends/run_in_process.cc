#include "backends/run_in_process.h"

#include <thread>

#include "runtime/comm/in_process.h"

namespace lockstep {

absl::Status ForEachRank(int ranks, const std::function<absl::Status(Communicator& communicator)>& f,
                         std::vector<absl::Status>* all) {
  ASSIGN_OR_RETURN(std::vector<std::unique_ptr<Communicator>> world, CreateInProcess(ranks));
  std::vector<absl::Status> statuses(static_cast<size_t>(ranks));
  std::vector<std::thread> threads;
  for (size_t rank = 0; rank < statuses.size(); ++rank) {
    threads.emplace_back([&, rank] {
      statuses[rank] = f(*world[rank]);
      if (!statuses[rank].ok()) world[rank]->Abort(statuses[rank]);
      world[rank].reset();
    });
  }
  for (std::thread& thread : threads) thread.join();
  if (all != nullptr) *all = statuses;
  // Peers of the failed rank have kAborted or kUnavailable from the communicator; another code shows the cause.
  absl::Status first;
  for (const absl::Status& status : statuses) {
    if (status.ok()) continue;
    const bool from_peer = absl::IsAborted(status) || absl::IsUnavailable(status);
    if (first.ok() || !from_peer) first = status;
    if (!from_peer) break;
  }
  return first;
}

absl::StatusOr<std::vector<Tensor>> RunOnce(Executor& executor, const Graph& graph, const std::vector<Tensor>& inputs) {
  std::vector<NamedInput> named;
  for (size_t i = 0; i < graph.inputs().size(); ++i) {
    const Input& input = graph.inputs()[i];
    const ConstTensorRef tensor{inputs[i].type(), inputs[i].bytes()};
    if (input.is_state) RETURN_IF_ERROR(executor.AssignState(input.name(), tensor));
    else if (input.setting) RETURN_IF_ERROR(executor.Set(input.name(), inputs[i].At(0)));
    else named.push_back({input.name(), tensor});
  }
  std::vector<Tensor> outputs;
  std::vector<NamedResult> results;
  outputs.reserve(graph.results().size());
  for (const Result& result : graph.results()) {
    outputs.emplace_back(result.value.type());
    if (!result.is_state) results.push_back({result.name, {result.value.type(), outputs.back().mutable_bytes()}});
  }
  RETURN_IF_ERROR(executor.Run(named, results));
  for (size_t i = 0; i < outputs.size(); ++i) {
    const Result& result = graph.results()[i];
    if (!result.is_state) continue;
    RETURN_IF_ERROR(executor.ReadState(result.name, {result.value.type(), outputs[i].mutable_bytes()}));
  }
  return outputs;
}

absl::StatusOr<std::vector<std::vector<Tensor>>> RunInProcess(const Graph& graph, const Backend& backend,
                                                              const std::vector<std::vector<Tensor>>& inputs,
                                                              const CompileOptions& options) {
  ASSIGN_OR_RETURN(auto results, RunSeveralInProcess(graph, backend, {inputs}, options));
  return std::move(results[0]);
}

absl::StatusOr<std::vector<std::vector<std::vector<Tensor>>>> RunSeveralInProcess(
    const Graph& graph, const Backend& backend, const std::vector<std::vector<std::vector<Tensor>>>& inputs,
    const CompileOptions& options) {
  LOCKSTEP_CHECK(!inputs.empty()) << "no runs";
  const size_t ranks = inputs[0].size();
  std::vector<std::vector<std::vector<Tensor>>> results(inputs.size(), std::vector<std::vector<Tensor>>(ranks));
  CompileOptions of_a_rank = options;
  of_a_rank.replicated = true;
  RETURN_IF_ERROR(ForEachRank(static_cast<int>(ranks), [&](Communicator& communicator) -> absl::Status {
    const auto rank = static_cast<size_t>(communicator.rank());
    ASSIGN_OR_RETURN(const RankDevice opened, backend.OpenDevice(communicator));
    ASSIGN_OR_RETURN(Executable executable, Compile(graph.Clone(), backend, of_a_rank));
    ASSIGN_OR_RETURN(const auto executor,
                     Executor::Load(std::move(executable), opened.communicator, opened.device.get()));
    for (size_t run = 0; run < inputs.size(); ++run) {
      ASSIGN_OR_RETURN(results[run][rank], RunOnce(*executor, graph, inputs[run][rank]));
    }
    return absl::OkStatus();
  }));
  return results;
}

}  // namespace lockstep
