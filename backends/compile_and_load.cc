#include "backends/compile_and_load.h"

#include <cstdint>
#include <optional>
#include <utility>
#include <vector>

#include "backends/compile.h"
#include "passes/distribute/gather_factors.h"
#include "passes/dump.h"
#include "runtime/execution/agreement.h"

namespace lockstep {
namespace {

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
absl::StatusOr<Executable> CompileFor(const Communicator& communicator, const Graph& graph, const Backend& backend,
                                      const LoadOptions& options) {
  CompileOptions own = options;
  if (!options.dump.empty()) {
    const std::string rank = communicator.size() == 1 ? "" : ".rank" + std::to_string(communicator.rank());
    ASSIGN_OR_RETURN(own.debug, passes::DumpTo(options.dump, graph.name() + rank));
  }
  return Compile(graph.Clone(), backend, own);
}

// Loads the program on all ranks together. With asynchronous servers, ranks run independently, and each loads on its
// own communicator of one rank. Executor::Load and Split report errors to the peers themselves.
absl::Status Load(LoadedProgram& loaded, Executable executable, const std::map<std::string, Tensor>& values,
                  const Backend& backend, const LoadOptions& options, Communicator& world) {
  const bool is_alone = options.servers && !options.servers->synchronous;
  absl::StatusOr<RankDevice> opened = backend.OpenDevice(world);
  absl::Status status = opened.status();
  if (status.ok()) {
    loaded.opened = *std::move(opened);
    Communicator* communicator = loaded.opened.communicator;
    if (is_alone && communicator->size() > 1) {
      ASSIGN_OR_RETURN(loaded.alone, communicator->Split(communicator->rank(), "a worker of asynchronous servers"));
      communicator = loaded.alone.get();
    }
    auto made =
        Executor::Load(std::move(executable), communicator, loaded.opened.device.get(),
                       {.check_every = options.check_every, .profile = options.profile, .servers = options.client});
    if (!made.ok()) {
      if (is_alone) world.Abort(made.status());  // its own communicator has no peers
      return made.status();
    }
    loaded.executor = *std::move(made);
    for (const ValueInfo& state : loaded.executor->executable().states) {
      const auto value = values.find(state.name);
      if (status.ok() && value != values.end())
        status = loaded.executor->AssignState(state.name, {value->second.type(), value->second.bytes()});
    }
  }
  if (!status.ok()) world.Abort(status);
  return status;
}

// Resolves the options and compiles. Does not communicate.
absl::StatusOr<Executable> ResolveAndCompile(const Graph& graph, const Backend& backend, LoadOptions& options,
                                             const Communicator& communicator) {
  RETURN_IF_ERROR(Resolve(options, graph, std::string(backend.name()), communicator));
  return CompileFor(communicator, graph, backend, options);
}

}  // namespace

absl::Status Resolve(LoadOptions& options, const Graph& graph, const std::string& backend,
                     const Communicator& communicator) {
  ASSIGN_OR_RETURN(options.mesh, MeshOfRanks(options, communicator.size()));
  options.rank = communicator.rank();
  RETURN_IF_ERROR(CheckOptions(graph, options, backend).status());
  if (!options.factors && options.optimize && !options.servers && options.virtual_ranks == 0 && options.shares.empty())
    options.factors = FactorsOfHosts(options.mesh, communicator);
  return absl::OkStatus();
}

absl::StatusOr<LoadedProgram> CompileAndLoad(const Graph& graph, const std::map<std::string, Tensor>& values,
                                             const Backend& backend, LoadOptions options, Communicator& communicator) {
  absl::StatusOr<Executable> executable = ResolveAndCompile(graph, backend, options, communicator);
  RETURN_IF_ERROR(AgreeOnSuccess(communicator, "compile", executable.status()));
  // Without this, ranks would detect that their programs differ, but not why.
  RETURN_IF_ERROR(AgreeOnText(communicator, "options of compile",
                              options.ToString() + "\n" + passes::Describe(options.passes),
                              "Pass the same options to compile on all ranks."));
  LoadedProgram loaded;
  loaded.strategy = options.ToString();
  loaded.graph = graph.Clone();
  loaded.backend = &backend;
  loaded.options = options;
  RETURN_IF_ERROR(Load(loaded, *std::move(executable), values, backend, options, communicator));
  const absl::Status replicas = CheckReplicas(*loaded.executor, communicator);
  if (replicas.code() == absl::StatusCode::kFailedPrecondition) {
    return FailedPrecondition() << replicas.message() << "; ranks that draw their weights need the same seed, such as "
                                << "torch.manual_seed(), or the weights of rank 0: from_torch(..., world=world)";
  }
  RETURN_IF_ERROR(replicas);
  return loaded;
}

absl::StatusOr<LoadedProgram> CompileAndLoad(const Graph& graph, const std::map<std::string, Tensor>& values,
                                             const std::string& backend_name, LoadOptions options,
                                             Communicator& communicator) {
  absl::StatusOr<std::unique_ptr<Backend>> backend = CreateBackend(backend_name);
  RETURN_IF_ERROR(AgreeOnSuccess(communicator, "compile", backend.status()));
  ASSIGN_OR_RETURN(LoadedProgram loaded, CompileAndLoad(graph, values, **backend, std::move(options), communicator));
  loaded.created = *std::move(backend);
  return loaded;
}

}  // namespace lockstep
