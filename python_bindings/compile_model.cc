#include "python_bindings/compile_model.h"

#include <memory>
#include <utility>

#include "passes/distribute/gather_factors.h"
#include "passes/dump.h"
#include "runtime/execution/agreement.h"

namespace lockstep::python {
namespace {

// Returns the mesh of the options. If it is empty, returns a mesh with all ranks along `data`, except with asynchronous
// servers, where each rank runs its own program. Batches are split along `data`, so a pipeline without this axis gets
// it with size 1.
Mesh MeshOfRanks(const CompileOptions& options, const Communicator& communicator) {
  const std::string data(kDataAxis);
  if (options.servers && !options.servers->synchronous) return options.mesh;
  if (options.mesh.empty()) return Mesh({{data, communicator.size()}});
  if (!options.mesh.has_axis(kStageAxis) || options.mesh.has_axis(data)) return options.mesh;
  std::vector<MeshAxis> axes = {{data, 1}};
  axes.insert(axes.end(), options.mesh.axes().begin(), options.mesh.axes().end());
  return Mesh(std::move(axes));
}

// Returns the default of the option `factors` (passes/distribute/gather_factors.h): a value if ranks that share a batch
// are on several hosts, null otherwise. It is equal on all ranks.
std::optional<double> FactorsOfHosts(const Mesh& mesh, const Communicator& communicator) {
  if (!mesh.has_axis(kDataAxis)) return std::nullopt;
  for (const std::vector<int64_t>& group : mesh.Groups(kDataAxis)) {
    for (const int64_t rank : group) {
      if (communicator.host(static_cast<int>(rank)) != communicator.host(static_cast<int>(group[0])))
        return passes::kOperationsPerByte;
    }
  }
  return std::nullopt;
}

// Compiles on this rank, without communication.
absl::StatusOr<Executable> CompileFor(const Communicator& communicator, const Backend& backend, const Model& model,
                                      CompileOptions options, const std::string& dump) {
  if (!dump.empty()) {
    const std::string rank = communicator.size() == 1 ? "" : ".rank" + std::to_string(communicator.rank());
    ASSIGN_OR_RETURN(options.debug, passes::DumpTo(dump, model.graph.name() + rank));
  }
  return Compile(model.graph.Clone(), backend, options);
}

// Loads the program on all ranks together. With `is_alone`, ranks run independently, and each loads on its own
// communicator of one rank. Executor::Load and Split report errors to the peers themselves.
absl::Status Load(LoadedExecutable& loaded, const Model& model, const Backend& backend, Executable executable,
                  const ExecutorOptions& options, bool is_alone) {
  absl::StatusOr<RankDevice> opened = backend.OpenDevice(*loaded.communicator);
  absl::Status status = opened.status();
  if (status.ok()) {
    loaded.opened = *std::move(opened);
    Communicator* communicator = loaded.opened.communicator;
    if (is_alone && communicator->size() > 1) {
      ASSIGN_OR_RETURN(loaded.alone, communicator->Split(communicator->rank(), "a worker of asynchronous servers"));
      communicator = loaded.alone.get();
    }
    auto made = Executor::Load(std::move(executable), communicator, loaded.opened.device.get(), options);
    if (!made.ok()) {
      if (is_alone) loaded.communicator->Abort(made.status());  // its own communicator has no peers
      return made.status();
    }
    loaded.executor = *std::move(made);
    for (const ValueInfo& state : loaded.executor->executable().states) {
      const auto value = model.values.find(state.name);
      if (status.ok() && value != model.values.end())
        status = loaded.executor->AssignState(state.name, {value->second.type(), value->second.bytes()});
    }
  }
  if (!status.ok()) loaded.communicator->Abort(status);
  return status;
}

}  // namespace

absl::Status Resolve(GivenOptions& options, const Graph& graph, const std::string& backend,
                     const Communicator& communicator) {
  options.mesh = MeshOfRanks(options, communicator);
  if (!options.mesh.empty() && options.mesh.num_ranks() != communicator.size()) {
    return InvalidArgument() << "compile: the mesh " << options.mesh.ToString() << " needs " << options.mesh.num_ranks()
                             << " ranks, and the world has " << communicator.size();
  }
  options.rank = communicator.rank();
  RETURN_IF_ERROR(lockstep::CheckOptions(graph, options, backend).status());
  if (!options.factors && options.optimize && !options.servers)
    options.factors = FactorsOfHosts(options.mesh, communicator);
  return absl::OkStatus();
}

absl::Status CompileAndLoad(LoadedExecutable& loaded, const Model& model, const std::string& backend_name,
                            const GivenOptions& options, const std::string& dump) {
  Communicator& communicator = *loaded.communicator;
  const absl::StatusOr<std::unique_ptr<Backend>> backend = CreateBackend(backend_name);
  absl::StatusOr<Executable> executable = backend.ok() ? CompileFor(communicator, **backend, model, options, dump)
                                                       : absl::StatusOr<Executable>(backend.status());
  RETURN_IF_ERROR(AgreeOnSuccess(communicator, "compile", executable.status()));
  // Without this, ranks would detect that their programs differ, but not why.
  RETURN_IF_ERROR(AgreeOnText(communicator, "options of compile", options.ToString(),
                              "Pass the same options to compile on all ranks."));
  loaded.strategy = options.ToString();
  const bool is_alone = options.servers && !options.servers->synchronous;
  RETURN_IF_ERROR(Load(loaded, model, **backend, *std::move(executable),
                       {.check_every = options.check_every, .profile = options.profile, .servers = options.client},
                       is_alone));
  const absl::Status replicas = CheckReplicas(*loaded.executor, communicator);
  if (replicas.code() != absl::StatusCode::kFailedPrecondition) return replicas;
  return FailedPrecondition() << replicas.message() << "; ranks that draw their weights need the same seed, such as "
                              << "torch.manual_seed(), or the weights of rank 0: from_torch(..., world=world)";
}

}  // namespace lockstep::python
