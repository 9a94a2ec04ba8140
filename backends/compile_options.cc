#include "backends/compile_options.h"

#include <algorithm>
#include <sstream>
#include <vector>

#include "backends/planning/served_states.h"
#include "core/op_def.h"

namespace lockstep {
namespace {

// --- The options -----------------------------------------------------------------------------------------------------

std::string Flag(bool value) { return value ? "True" : "False"; }

std::string TextOf(const passes::PlacementChoices& choices) {
  std::ostringstream text;
  for (const auto& [name, dims] : choices) {
    text << (text.tellp() > 0 ? ", " : "") << name << " {";
    for (auto it = dims.begin(); it != dims.end(); ++it)
      text << (it == dims.begin() ? "" : ", ") << it->first << ": " << it->second;
    text << "}";
  }
  return choices.empty() ? "None" : text.str();
}

template <typename T>
std::string TextOf(const std::optional<T>& value) {
  std::ostringstream text;
  if (value) text << *value;
  else text << "None";
  return text.str();
}

struct Option {
  std::string_view name;  // as users write it
  std::string (*text)(const CompileOptions&);
};

// The options that change what ranks run. An option is given if its text differs from the default's.
constexpr Option kOptions[] = {
    {"mesh", [](const CompileOptions& o) { return o.mesh.ToString(); }},
    {"split or placements", [](const CompileOptions& o) { return TextOf(o.placements); }},
    {"shard_optimizer", [](const CompileOptions& o) { return Flag(o.shard_optimizer); }},
    {"shared_weights", [](const CompileOptions& o) { return Flag(o.shared_weights); }},
    {"wire", [](const CompileOptions& o) { return o.wire.empty() ? "None" : o.wire; }},
    {"factors", [](const CompileOptions& o) { return TextOf(o.factors) + " operations for a byte"; }},
    {"bucket_bytes", [](const CompileOptions& o) { return TextOf(o.bucket_bytes); }},
    {"buckets", [](const CompileOptions& o) { return std::string(o.measured ? "by a report" : "None"); }},
    {"strategy", [](const CompileOptions& o) { return std::string(o.servers ? "parameter_server" : "all_reduce"); }},
    {"asynchronous", [](const CompileOptions& o) { return Flag(o.servers && !o.servers->synchronous); }},
    {"max_staleness",
     [](const CompileOptions& o) { return std::to_string(o.servers ? o.servers->max_staleness : -1); }},
    {"bigarray_bound",
     [](const CompileOptions& o) {
       return std::to_string(o.servers.value_or(passes::ServerOptions()).bigarray_bound);
     }},
    {"replicated", [](const CompileOptions& o) { return Flag(o.replicated); }},
    {"optimize", [](const CompileOptions& o) { return Flag(o.optimize); }},
    {"tf32", [](const CompileOptions& o) { return Flag(o.tf32); }},
};

// --- Exclusions ------------------------------------------------------------------------------------------------------

struct Exclusion {
  std::string_view one, other;  // names of options; "name=value" for a value of one; kStages; kDevice
  std::string_view why;
};

constexpr std::string_view kStages = "a mesh with the axis stage";
constexpr std::string_view kDevice = "a backend that is not \"cpu\"";
constexpr std::string_view kServers = "strategy=parameter_server";

constexpr std::string_view kSlices = "ranks get slices of gradients, but wire needs whole gradients on each rank";
constexpr std::string_view kOwnWeights = "the ranks of different stages have different weights";
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
    {"asynchronous=True", "mesh", "each rank then runs a program of its own"},
    {"asynchronous=True", "split or placements", "each rank then runs a program of its own"},
    {"shared_weights", kDevice, "ranks share the host's memory"},
    {"shared_weights", kStages, kOwnWeights},
    {"shared_weights", "wire", kSlices},
    {"shard_optimizer", kStages, kOwnWeights},
    {"shard_optimizer", "wire", kSlices},
    {"wire=int8", kStages, "the rounding errors that int8 keeps have no place on other stages; wire=\"bf16\" works"},
    {"buckets", kStages, "each stage has different steps, whose times do not apply to other stages"},
    {"buckets", kDevice, "only steps on a CPU have times"},
    {"optimize=False", "buckets", "it turns such optimizations off"},
    {"optimize=False", "factors", "it turns such optimizations off"},
    {kStages, kDevice, "pipelines run only on CPUs"},
};

// Returns what messages call the given value of `what`, such as wire="bf16"; empty if it is not given.
std::string Given(std::string_view what, const CompileOptions& options, const Mesh& mesh, std::string_view backend) {
  if (what == kDevice) return backend == "cpu" ? "" : "backend=\"" + std::string(backend) + "\"";
  if (what == kStages) return mesh.axis_size(kStageAxis).value_or(1) > 1 ? "stages, mesh=" + mesh.ToString() : "";
  const size_t equals = what.find('=');
  const std::string_view name = what.substr(0, equals);
  const auto* const option =
      std::find_if(std::begin(kOptions), std::end(kOptions), [&](const Option& each) { return each.name == name; });
  LOCKSTEP_CHECK(option != std::end(kOptions)) << name;
  const std::string value = option->text(options);
  if (value == option->text(CompileOptions()) || (equals != what.npos && value != what.substr(equals + 1))) return "";
  const bool is_text = name == "wire" || name == "strategy";
  if (name == "split or placements" || name == "buckets" || name == "factors") return std::string(name);
  return std::string(name) + "=" + (is_text ? "\"" + value + "\"" : value);
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

}  // namespace

std::string OptionsText(const CompileOptions& options) {
  std::string text;
  for (const Option& option : kOptions) text += std::string(option.name) + ": " + option.text(options) + "\n";
  return text;
}

absl::StatusOr<Mesh> CheckOptions(const Graph& graph, const CompileOptions& options, std::string_view backend) {
  const Mesh mesh = options.mesh.empty() ? graph.mesh() : options.mesh;
  RETURN_IF_ERROR(CheckTogether(options, mesh, backend));
  RETURN_IF_ERROR(CheckMesh(graph, options.mesh));
  RETURN_IF_ERROR(CheckStages(graph, options, mesh));
  RETURN_IF_ERROR(CheckServers(graph, options));
  return mesh;
}

}  // namespace lockstep
