#include "backends/compile.h"

#include <algorithm>
#include <numeric>
#include <optional>
#include <string>
#include <vector>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "backends/emit_executable.h"
#include "core/local_types.h"
#include "core/op_def.h"
#include "passes/pipeline.h"
#include "verify/check_gradients.h"
#include "verify/compare_programs.h"
#include "verify/shrink.h"

namespace lockstep {
namespace {

// Pushes and pulls are steps if there are servers. Without servers they are replaced by their meaning.
bool IsOfServers(const Node& node) { return node.op().has_trait(kOfServers); }

// Returns the number of virtual ranks whose rows are each rank's share. Empty if shares are equal.
std::vector<int64_t> VirtualRanksOf(const CompileOptions& options) {
  const int64_t rows = std::accumulate(options.shares.begin(), options.shares.end(), int64_t{0});
  std::vector<int64_t> counts;
  for (const int64_t share : options.shares) counts.push_back(share * options.virtual_ranks / rows);
  return counts;
}

passes::PipelineOptions PipelineFor(const Graph& graph, Mesh ranks, const Target& target,
                                    const CompileOptions& options) {
  passes::PipelineOptions pipeline;
  if (options.virtual_ranks > 0) {
    pipeline.fold_to = ranks.num_ranks();
    pipeline.virtual_shares = {.rows = VirtualRanksOf(options), .rank = options.rank.value_or(0)};
    ranks = Mesh({{std::string(kDataAxis), options.virtual_ranks}});
  }
  pipeline.ranks = ranks;
  pipeline.placements = options.placements;
  if (options.virtual_ranks == 0) pipeline.shares = {.rows = options.shares, .rank = options.rank.value_or(0)};
  pipeline.shard_optimizer = options.shard_optimizer;
  pipeline.replicated = options.replicated;
  if (graph.mesh().empty()) pipeline.mesh = ranks.Without(kStageAxis);  // otherwise the graph is already distributed
  if (target.place && !graph.mesh().has_axis(kStageAxis))
    pipeline.stages = {.stages = *ranks.axis_size(kStageAxis), .mesh = ranks};
  pipeline.servers = options.servers;
  pipeline.wire = options.wire;
  pipeline.factors.operations_per_byte = options.factors.value_or(0);
  pipeline.buckets = {options.bucket_bytes.value_or(passes::MergeOptions().max_bytes)};
  pipeline.buckets.measured = options.measured;
  pipeline.supports = [supports = target.supports, has_servers = options.servers.has_value()](const Node& node) {
    return IsOfServers(node) ? has_servers : supports(node);
  };
  pipeline.prefers_f32 = target.prefers_f32;
  pipeline.rounds_sum = target.rounds_sum;
  pipeline.fast_f64 = target.fast_f64;
  pipeline.fusion = target.fusion;
  pipeline.optimize = options.optimize;
  pipeline.extra = options.passes;
  return pipeline;
}

// Returns an error that names a node whose results depend on the ranks by definition.
absl::Status CheckCanBeCompared(const Graph& graph) {
  if (!graph.mesh().empty()) return absl::OkStatus();
  for (const Node& node : graph.nodes()) {
    if (!node.op().FindAttribute("statistics") || node.attr<std::string>("statistics") != "rank") continue;
    return InvalidArgument() << "verify: the batch statistics of " << node.Describe()
                             << " are those of each rank, so they depend on the number of ranks by definition "
                                "(batch_statistics=\"rank\")";
  }
  return absl::OkStatus();
}

// Runs the passes on `graph`, and returns the target for which they made a program. `assumptions` is null, or gets what
// a comparison takes for granted, which is then made.
absl::StatusOr<Target> RunPipeline(Graph& graph, const Backend& backend, const CompileOptions& options,
                                   verify::Assumptions* assumptions) {
  ASSIGN_OR_RETURN(graph, ToGlobalTypes(graph));  // turns the program of one rank into that of all ranks
  ASSIGN_OR_RETURN(const Mesh ranks, CheckOptions(graph, options, backend.name()));
  ASSIGN_OR_RETURN(Target target,
                   backend.MakeTarget({static_cast<int>(options.threads), options.isa, options.tf32, options.tune}));
  if (ranks.axis_size(kStageAxis).value_or(1) > 1)
    target.place = PlaceOfPart{std::string(kStageAxis), ranks.Coordinate(*options.rank, kStageAxis)};
  if (assumptions != nullptr && ranks.num_ranks() > 1) RETURN_IF_ERROR(CheckCanBeCompared(graph));
  const std::vector<passes::Pass> pipeline = passes::MakePipeline(PipelineFor(graph, ranks, target, options));
  const absl::Status passed = assumptions != nullptr
                                  ? verify::RunPassesChecked(pipeline, graph, options.debug, /*seed=*/1, assumptions)
                                  : passes::RunPasses(pipeline, graph, options.debug);
  if (absl::IsUnimplemented(passed)) return Annotate(passed, "backend=\"" + std::string(backend.name()) + "\"");
  if (!passed.ok() && options.virtual_ranks > 0)
    return Annotate(passed, absl::StrCat("virtual_ranks=", options.virtual_ranks, ", each of which counts as a rank"));
  RETURN_IF_ERROR(passed);
  return target;
}

double BytesOfStates(const Graph& graph) {
  double bytes = 0;
  for (const Input& input : graph.inputs())
    bytes += input.is_state ? static_cast<double>(input.value.type().num_bytes()) : 0;
  return bytes;
}

// Makes `graph` smaller, and the buckets in `options` as much smaller as its states, if a comparison of it would take
// long: more than kLongRun operations. Returns what was changed, or an empty text.
std::string Shrink(Graph& graph, CompileOptions& options, bool keeps_written) {
  constexpr double kLongRun = 1 << 22;
  if (!graph.mesh().empty() || verify::CostOfRun(graph) <= kLongRun) return "";
  const int64_t ranks = std::max<int64_t>(options.virtual_ranks, 1) * options.mesh.num_ranks();
  verify::Shrunk shrunk = verify::ShrinkDimensions(graph, ranks, keeps_written);
  if (shrunk.changes.empty()) return "";
  if (!options.servers && !options.measured) {
    const auto bytes = static_cast<double>(options.bucket_bytes.value_or(passes::MergeOptions().max_bytes));
    const double ratio = BytesOfStates(shrunk.program) / std::max(BytesOfStates(graph), 1.0);
    options.bucket_bytes = std::max(static_cast<int64_t>(bytes * ratio), int64_t{1});
  }
  graph = std::move(shrunk.program);
  return absl::StrJoin(shrunk.changes, ", ");
}

absl::Status VerifyAsItIs(const Graph& graph, const Backend& backend, const CompileOptions& options,
                          bool checks_gradients, verify::Assumptions& assumptions) {
  Graph program = graph.Clone();
  RETURN_IF_ERROR(RunPipeline(program, backend, options, &assumptions).status());
  if (!checks_gradients) return absl::OkStatus();
  if (!graph.mesh().empty()) {
    assumptions.insert("gradients are not checked in a program that is distributed already");
    return absl::OkStatus();
  }
  const absl::Status gradients = verify::CheckGradientsOfStep(graph, /*seed=*/1, assumptions);
  if (absl::IsUnimplemented(gradients))
    assumptions.insert("gradients are the derivatives of the loss: " + std::string(gradients.message()));
  else if (!absl::IsNotFound(gradients)) return gradients;  // not found in a program that is no training step
  return absl::OkStatus();
}

// Returns a copy whose exchanges are exact sums, if the graph has exchanges with bodies, which may lose digits on
// purpose.
std::optional<Graph> WithExactSums(const Graph& graph, std::string& exchanges) {
  Graph copy = graph.Clone();
  for (Node& node : copy.nodes()) {
    const bool of_weights = node.Is("exchange_weights");
    if (!node.Is("exchange") && !of_weights) continue;
    if (!of_weights && !node.attr<std::string>("wire").empty()) continue;  // with a wire, it has no body
    const std::string& by = node.attr<std::string>("by");
    if (exchanges.find(by) == std::string::npos) exchanges += (exchanges.empty() ? "" : ", ") + by;
    copy.SetAttribute(&node, "body", Region()).IgnoreError();  // an exchange without a body is valid
  }
  return exchanges.empty() ? std::nullopt : std::optional(std::move(copy));
}

// VerifyAsItIs of a smaller program. Null if that is not possible, or if `graph` is small enough.
std::optional<absl::Status> VerifySmaller(const Graph& graph, const Backend& backend, const CompileOptions& given,
                                          bool checks_gradients, verify::Assumptions& assumptions) {
  std::string failed;  // the text of a smaller program that cannot be run
  for (bool keeps_written : {false, true}) {
    Graph smaller = graph.Clone();
    CompileOptions options = given;
    options.debug = {};
    const std::string changes = Shrink(smaller, options, keeps_written);
    if (changes.empty() || (keeps_written && smaller.ToString() == failed)) break;
    assumptions = {};
    const absl::Status status = VerifyAsItIs(smaller, backend, options, checks_gradients, assumptions);
    if (status.ok()) {
      assumptions.insert("what holds for smaller dimensions holds for those of the program: " + changes);
      return status;
    }
    // A position that the program computes may be outside of what has become smaller.
    if (verify::Reference::Of(smaller).ok())
      return absl::Status(status.code(), absl::StrCat(status.message(), "\nwith smaller dimensions: ", changes));
    failed = smaller.ToString();
  }
  return std::nullopt;
}

// The programs of other shares differ in numbers of rows alone.
CompileOptions WithEqualShares(CompileOptions options) {
  options.shares.clear();
  return options;
}

}  // namespace

absl::StatusOr<Executable> Compile(Graph graph, const Backend& backend, const CompileOptions& options) {
  verify::Assumptions assumptions;
  std::optional<absl::Status> verified;
  if (options.verify) {
    std::string exchanges;
    const std::optional<Graph> exact = WithExactSums(graph, exchanges);
    const Graph& checked = exact ? *exact : graph;
    const CompileOptions compared = WithEqualShares(options);
    verified = VerifySmaller(checked, backend, compared, /*checks_gradients=*/false, assumptions);
    if (!verified && (exact || !options.shares.empty()))
      verified = VerifyAsItIs(checked, backend, compared, /*checks_gradients=*/false, assumptions);
  }
  if (verified) RETURN_IF_ERROR(*verified);
  const bool verifies = options.verify && !verified;
  std::string before_rows_differ = options.shares.empty() ? "" : graph.ToString();
  ASSIGN_OR_RETURN(const Target target, RunPipeline(graph, backend, options, verifies ? &assumptions : nullptr));
  absl::StatusOr<Executable> executable = EmitExecutable(graph.Clone(), backend, target, options);
  if (executable.ok()) executable->common_text = std::move(before_rows_differ);
  if (executable.ok() || options.debug.reproducer_directory.empty()) return executable;
  return passes::WithReproducer(executable.status(), "emit", graph.name(), graph.ToString(), options.debug);
}

absl::StatusOr<verify::Assumptions> Verify(const Graph& given, const Backend& backend, const CompileOptions& options,
                                           bool shrink) {
  verify::Assumptions assumptions;
  std::string exchanges;
  const std::optional<Graph> exact = WithExactSums(given, exchanges);
  const Graph& graph = exact ? *exact : given;
  std::optional<absl::Status> verified;
  const CompileOptions compared = WithEqualShares(options);
  if (shrink) verified = VerifySmaller(graph, backend, compared, /*checks_gradients=*/true, assumptions);
  if (!verified) {
    assumptions = {};
    verified = VerifyAsItIs(graph, backend, compared, /*checks_gradients=*/true, assumptions);
  }
  RETURN_IF_ERROR(*verified);
  if (exact) assumptions.insert("the sums of gradients are those that the exchanges make of them: " + exchanges);
  return assumptions;
}

}  // namespace lockstep
