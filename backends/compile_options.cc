#include "backends/compile_options.h"

#include <algorithm>

#include "backends/option_table.h"
#include "backends/planning/served_states.h"
#include "core/op_def.h"
#include "core/option_text.h"
#include "passes/pipeline.h"
#include "passes/training/uneven.h"

namespace lockstep {
namespace {

// --- Exclusions ------------------------------------------------------------------------------------------------------

struct Exclusion {
  std::string_view one, other;  // the name of an option, "name=value" for one value of it, kStages or kDevice
  std::string_view why;
};

constexpr std::string_view kStages = "a mesh with the axis stage";
constexpr std::string_view kDevice = "a backend that is not \"cpu\"";
constexpr std::string_view kServers = "strategy=parameter_server";

constexpr std::string_view kSlices = "ranks get slices of gradients, but wire needs whole gradients on each rank";
constexpr std::string_view kOwnWeights = "the ranks of different stages have different weights";
constexpr std::string_view kShards = "the sums of virtual ranks follow one tree, which it would change";
constexpr std::string_view kEqualSlices = "ranks then have equal slices of values, not shares of rows alone";
constexpr std::string_view kNoReduction =
    "servers add gradients as ranks push them, and keep the optimizer's states themselves";

// If one option includes another, such as shared_weights and shard_optimizer, the one that users write is listed first.
constexpr Exclusion kExclusions[] = {
    {kServers, kDevice, "servers update weights in the host's memory"},
    {kServers, kStages, "each stage has its own optimizers"},
    {kServers, "shared_weights", kNoReduction},
    {kServers, "shard_optimizer", kNoReduction},
    {kServers, "wire", kNoReduction},
    {kServers, "buckets", kNoReduction},
    {kServers, "bucket_bytes", kNoReduction},
    {kServers, "factors", kNoReduction},
    {"asynchronous=true", "mesh", "each rank then runs a program of its own"},
    {"asynchronous=true", "split", "each rank then runs a program of its own"},
    {"shared_weights", kDevice, "ranks share the host's memory"},
    {"shared_weights", kStages, kOwnWeights},
    {"shared_weights", "wire", kSlices},
    {"shard_optimizer", kStages, kOwnWeights},
    {"shard_optimizer", "wire", kSlices},
    {"wire=int8", kStages,
     "int8 keeps rounding errors in states of each rank, which stages do not support; wire=\"bf16\" works"},
    {"buckets", kStages, "each stage has different steps, whose times do not apply to other stages"},
    {"buckets", kDevice, "only steps on a CPU have times"},
    {"optimize=false", "buckets", "it turns this optimization off"},
    {"optimize=false", "factors", "it turns this optimization off"},
    {"check_numerics", kServers, "servers update weights before the step is looked at"},
    {"check_numerics", kStages, "each stage runs different ops, so none is the first"},
    {"verify_hardware", kServers, "servers would get each gradient twice"},
    {"verify_hardware", kStages, "each stage runs a program that its neighbour does not have"},
    {"verify_hardware", kDevice, "steps are computed again in the host's memory"},
    {"verify_hardware", "shared_weights", "a step is computed again with weights of its own"},
    {kStages, kDevice, "pipelines run only on CPUs"},
    {"virtual_ranks", kServers, "servers add gradients as ranks push them"},
    {"virtual_ranks", kStages, "virtual ranks are along \"data\" alone"},
    {"virtual_ranks", "shared_weights", "each rank has a copy of the weights, which its virtual ranks share"},
    {"virtual_ranks", "wire", kShards},
    {"virtual_ranks", "factors", kShards},
    {"virtual_ranks", "buckets", "the times of its steps are not those of virtual ranks"},
    {"shares", kServers, "servers expect full batches of all ranks"},
    {"shares", kStages, "the ranks of a pipeline have layers, not rows, of their own"},
    {"shares", kDevice, "only steps on a CPU have times"},
    {"shares", "split", kEqualSlices},
    {"shares", "shared_weights", kEqualSlices},
    {"shares", "shard_optimizer", kEqualSlices},
    {"shares", "wire=int8", kEqualSlices},
    {"shares", "factors", "ranks then gather rows, of which all have equally many"},
    {"shares", "verify_hardware", "the next rank has a program for another number of rows"},
};

// Returns a value in Python's syntax.
std::string Shown(const CompileOption& option, const std::string& text) {
  if (text == "true" || text == "false") return text == "true" ? "True" : "False";
  return option.choices.empty() ? text : "\"" + text + "\"";
}

// Returns `what` with its given value for messages, such as wire="bf16"; empty if it is not given. An option that is
// false counts as not given, unless `what` names that value.
std::string Given(std::string_view what, const CompileOptions& options, const Mesh& mesh, std::string_view backend) {
  if (what == kDevice) return backend == "cpu" ? "" : "backend=\"" + std::string(backend) + "\"";
  if (what == kStages) return mesh.axis_size(kStageAxis).value_or(1) > 1 ? "stages, mesh=" + mesh.ToString() : "";
  const size_t equals = what.find('=');
  const CompileOption& option = CompileOptionNamed(what.substr(0, equals));
  const std::string text = option.text(options);
  if (text == option.text(CompileOptions())) return "";
  if (equals == what.npos ? text == "false" : text != what.substr(equals + 1)) return "";
  if (option.name == "split") return "split or placements";
  const bool is_long = option.name == "buckets" || option.name == "factors";
  return is_long ? option.name : option.name + "=" + Shown(option, text);
}

absl::Status CheckTogether(const CompileOptions& options, const Mesh& mesh, std::string_view backend) {
  for (const Exclusion& exclusion : kExclusions) {
    const std::string one = Given(exclusion.one, options, mesh, backend);
    const std::string other = one.empty() ? "" : Given(exclusion.other, options, mesh, backend);
    if (other.empty()) continue;
    return InvalidArgument() << "compile: " << one << " does not go with " << other << ": " << exclusion.why;
  }
  return absl::OkStatus();
}

// --- Requirements on the graph ---------------------------------------------------------------------------------------

absl::Status CheckMesh(const Graph& graph, const Mesh& mesh) {
  const bool is_same = mesh == graph.mesh() || mesh.Without(kStageAxis) == graph.mesh();
  if (graph.mesh().empty() || mesh.empty() || is_same) return absl::OkStatus();
  return InvalidArgument() << "graph @" << graph.name() << " is distributed over the mesh " << graph.mesh().ToString()
                           << ", but is to be compiled for " << mesh.ToString();
}

bool HasOptimizer(const Graph& graph) {
  return std::any_of(graph.nodes().begin(), graph.nodes().end(),
                     [](const Node& node) { return node.op().has_trait(kOptimizer); });
}

absl::Status CheckServers(const Graph& graph, const CompileOptions& options) {
  if (!options.servers) return absl::OkStatus();
  ErrorStream error = InvalidArgument() << "graph @" << graph.name() << ": strategy=\"parameter_server\": ";
  if (!graph.mesh().empty()) return error << "it is already distributed, over the mesh " << graph.mesh().ToString();
  RETURN_IF_ERROR(CheckMeshOfServers(options.mesh, options.servers->axis));
  if (!HasOptimizer(graph)) return error << "it has no optimizer, so servers have nothing to update";
  ASSIGN_OR_RETURN(const passes::InputSplits splits, passes::SplitsOf(graph, options.placements));
  for (const Node& node : graph.nodes()) {
    if (!node.op().has_trait(kOptimizer)) continue;
    const auto split = splits.find(node.operand(0).name());
    if (split == splits.end() || split->second.empty()) continue;
    return InvalidArgument() << "compile: strategy=\"parameter_server\" does not go with split or placements of %"
                             << split->first << ": servers keep whole variables";
  }
  return absl::OkStatus();
}

absl::Status CheckVirtualRanks(const Graph& graph, const CompileOptions& options, const Mesh& mesh) {
  const int64_t shards = options.virtual_ranks, ranks = mesh.num_ranks();
  if (shards == 0) return absl::OkStatus();
  ErrorStream error = InvalidArgument() << "compile: virtual_ranks=" << shards;
  if (!graph.mesh().empty())
    return error << ": graph @" << graph.name() << " is already distributed, over the mesh " << graph.mesh().ToString();
  if ((shards & (shards - 1)) != 0) return error << " is not a power of two";
  for (const MeshAxis& axis : mesh.axes()) {
    if (axis.name == kDataAxis || axis.size == 1) continue;
    return error << " does not go with mesh=" << mesh.ToString() << ": virtual ranks are along \"data\" alone";
  }
  if (options.shares.empty() && shards % ranks != 0)
    return error << ": " << ranks << " ranks cannot run so many evenly, since " << ranks << " does not divide "
                 << shards;
  return absl::OkStatus();
}

// Requires that the options have shares.
absl::Status CheckRows(const Graph& graph, const CompileOptions& options, const Mesh& mesh) {
  const std::vector<int64_t>& shares = options.shares;
  ErrorStream error = InvalidArgument() << "compile: shares=" << ToText(shares);
  if (!graph.mesh().empty())
    return error << ": graph @" << graph.name() << " is already distributed, over the mesh " << graph.mesh().ToString();
  for (const MeshAxis& axis : mesh.axes()) {
    if (axis.name == kDataAxis || axis.size == 1) continue;
    return error << " does not go with mesh=" << mesh.ToString() << ": shares are of ranks along \"data\" alone";
  }
  if (!passes::IsUneven(graph))
    return error << ": graph @" << graph.name()
                 << " needs full batches, with equal shares; train_step(..., uneven=True) makes a step that does not";
  const int64_t ranks = mesh.axis_size(kDataAxis).value_or(1), rows = graph.FindInput(passes::kRows)->value.shape()[0];
  if (static_cast<int64_t>(shares.size()) != ranks)
    return error << " has the shares of " << shares.size() << " ranks, but there are " << ranks << " along \"data\"";
  int64_t total = 0;
  for (const int64_t share : shares) {
    if (share < 1 || share > rows) return error << ": " << share << " is not a share of 1 to " << rows << " rows";
    if (share * options.virtual_ranks % rows != 0)
      return error << ": " << share << " rows are no whole number of virtual ranks, each of which has "
                   << rows / options.virtual_ranks << " rows with virtual_ranks=" << options.virtual_ranks;
    total += share;
  }
  if (total != rows) return error << " is " << total << " rows, but the batch has " << rows;
  return absl::OkStatus();
}

absl::Status CheckStages(const Graph& graph, const CompileOptions& options, const Mesh& mesh) {
  if (mesh.axis_size(kStageAxis).value_or(1) == 1) return absl::OkStatus();
  ErrorStream error = InvalidArgument() << "graph @" << graph.name() << " is compiled for the stages of the mesh "
                                        << mesh.ToString() << ", ";
  if (!HasOptimizer(graph))
    return error << "but only a training step with an optimizer can be cut into stages; a step with SGD(0.0) "
                    "computes a loss and changes nothing";
  if (!options.rank) return error << "but CompileOptions::rank is not set";
  if (*options.rank < 0 || *options.rank >= mesh.num_ranks()) return error << "but there is no rank " << *options.rank;
  return absl::OkStatus();
}

// An exchange needs the sum of one axis, by all ranks, as one program.
absl::Status CheckExchanges(const Graph& graph, const CompileOptions& options, const Mesh& mesh) {
  const auto found =
      std::find_if(graph.nodes().begin(), graph.nodes().end(), [](const Node& node) { return node.Is("exchange"); });
  if (found == graph.nodes().end()) return absl::OkStatus();
  std::string_view with;
  if (options.virtual_ranks > 0) with = "virtual_ranks";
  if (options.servers) with = "parameter servers";
  if (!options.shares.empty()) with = "shares";
  if (mesh.axis_size(kStageAxis).value_or(1) > 1) with = "an axis \"stage\"";
  const bool shards = options.shard_optimizer || options.shared_weights;
  const bool of_weights = std::any_of(graph.nodes().begin(), graph.nodes().end(),
                                      [](const Node& node) { return node.Is("exchange_weights"); });
  if (with.empty() && shards && of_weights) with = options.shared_weights ? "shared_weights" : "shard_optimizer";
  if (with.empty()) return absl::OkStatus();
  return InvalidArgument() << with << " and exchanges exclude each other; the step has " << found->Describe() << " by "
                           << found->attr<std::string>("by");
}

}  // namespace

absl::StatusOr<Mesh> MeshOfRanks(const CompileOptions& options, int64_t num_ranks) {
  const std::string data(kDataAxis);
  if (options.servers && !options.servers->synchronous) return options.mesh;
  if (options.mesh.empty()) return Mesh({{data, num_ranks}});
  if (options.mesh.num_ranks() != num_ranks) {
    return InvalidArgument() << "compile: the mesh " << options.mesh.ToString() << " needs " << options.mesh.num_ranks()
                             << " ranks, and the world has " << num_ranks;
  }
  if (!options.mesh.has_axis(kStageAxis) || options.mesh.has_axis(data)) return options.mesh;
  std::vector<MeshAxis> axes = {{data, 1}};
  axes.insert(axes.end(), options.mesh.axes().begin(), options.mesh.axes().end());
  return Mesh(std::move(axes));
}

absl::StatusOr<Mesh> CheckOptions(const Graph& graph, const CompileOptions& options, std::string_view backend) {
  const Mesh mesh = options.mesh.empty() ? graph.mesh() : options.mesh;
  RETURN_IF_ERROR(CheckTogether(options, mesh, backend));
  RETURN_IF_ERROR(Annotate(passes::CheckExtraPasses(options.passes), "compile"));
  RETURN_IF_ERROR(CheckMesh(graph, options.mesh));
  RETURN_IF_ERROR(CheckVirtualRanks(graph, options, mesh));
  if (!options.shares.empty()) RETURN_IF_ERROR(CheckRows(graph, options, mesh));
  RETURN_IF_ERROR(CheckStages(graph, options, mesh));
  RETURN_IF_ERROR(CheckServers(graph, options));
  RETURN_IF_ERROR(CheckExchanges(graph, options, mesh));
  return mesh;
}

}  // namespace lockstep
