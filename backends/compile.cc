#include "backends/compile.h"

#include <string>

#include "backends/emit_executable.h"
#include "core/local_types.h"
#include "core/op_def.h"
#include "passes/pipeline.h"
#include "verify/compare_programs.h"
#include "verify/tangent.h"

namespace lockstep {
namespace {

// Pushes and pulls are steps if there are servers. Without servers they are replaced by their meaning.
bool IsOfServers(const Node& node) { return node.op().has_trait(kOfServers); }

passes::PipelineOptions PipelineFor(const Graph& graph, Mesh ranks, const Target& target,
                                    const CompileOptions& options) {
  passes::PipelineOptions pipeline;
  if (options.virtual_ranks > 0) {
    pipeline.fold_to = ranks.num_ranks();
    ranks = Mesh({{std::string(kDataAxis), options.virtual_ranks}});
  }
  pipeline.ranks = ranks;
  pipeline.placements = options.placements;
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
  return pipeline;
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
  const std::vector<passes::Pass> pipeline = passes::MakePipeline(PipelineFor(graph, ranks, target, options));
  const absl::Status passed = assumptions != nullptr
                                  ? verify::RunPassesChecked(pipeline, graph, options.debug, /*seed=*/1, assumptions)
                                  : passes::RunPasses(pipeline, graph, options.debug);
  if (absl::IsUnimplemented(passed)) return Annotate(passed, "backend=\"" + std::string(backend.name()) + "\"");
  RETURN_IF_ERROR(passed);
  return target;
}

}  // namespace

absl::StatusOr<Executable> Compile(Graph graph, const Backend& backend, const CompileOptions& options) {
  verify::Assumptions assumptions;
  ASSIGN_OR_RETURN(const Target target, RunPipeline(graph, backend, options, options.verify ? &assumptions : nullptr));
  absl::StatusOr<Executable> executable = EmitExecutable(graph.Clone(), backend, target, options);
  if (executable.ok() || options.debug.reproducer_directory.empty()) return executable;
  return passes::WithReproducer(executable.status(), "emit", graph.name(), graph.ToString(), options.debug);
}

absl::StatusOr<verify::Assumptions> Verify(Graph graph, const Backend& backend, const CompileOptions& options) {
  verify::Assumptions assumptions;
  const Graph step = graph.Clone();
  RETURN_IF_ERROR(RunPipeline(graph, backend, options, &assumptions).status());
  if (!step.mesh().empty()) {
    assumptions.insert("gradients are not checked in a program that is distributed already");
    return assumptions;
  }
  const absl::Status gradients = verify::CheckGradientsOfStep(step, /*seed=*/1, assumptions);
  if (absl::IsUnimplemented(gradients))
    assumptions.insert("gradients are the derivatives of the loss: " + std::string(gradients.message()));
  else if (!absl::IsNotFound(gradients)) RETURN_IF_ERROR(gradients);  // not found in a program that is no training step
  return assumptions;
}

}  // namespace lockstep
