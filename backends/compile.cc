#include "backends/compile.h"

#include "backends/lowering/bind_results.h"
#include "backends/lowering/buffer_plan.h"
#include "backends/lowering/certificate.h"
#include "backends/lowering/emit_steps.h"
#include "backends/lowering/schedule.h"
#include "core/verifier.h"
#include "passes/distribute/distribute.h"
#include "passes/distribute/merge_all_reduces.h"
#include "passes/distribute/overlap_collectives.h"
#include "passes/legalize.h"

namespace lockstep {
namespace {

std::vector<passes::Pass> Pipeline(const Graph& graph, const Backend& backend, const CompileOptions& options) {
  std::vector<passes::Pass> pipeline;
  if (graph.mesh().empty() && options.mesh.num_ranks() > 1) pipeline.push_back(passes::Distribute(options.mesh));
  pipeline.push_back(passes::MergeAllReduces({options.bucket_bytes, options.bucket_bytes / 4}));
  pipeline.push_back(passes::Legalize([&](const Node& node) { return backend.Supports(node); }));
  pipeline.push_back(passes::OverlapCollectives());
  return pipeline;
}

}  // namespace

absl::StatusOr<Executable> Compile(Graph graph, const Backend& backend, const CompileOptions& options) {
  RETURN_IF_ERROR(Verify(graph));
  RETURN_IF_ERROR(passes::RunPasses(Pipeline(graph, backend, options), graph, options.debug));
  ASSIGN_OR_RETURN(Program program, backend.Lower(graph, {options.threads}));
  ScheduleCollectives(program);                           // starts as early, waits as late as can be; gradients into buckets
  BindResults(program);                                   // results and next states are written in place
  const BufferPlan plan = PlanBuffers(program);           // the rest shares an arena by lifetimes
  StepList steps = EmitSteps(program, plan);
  ASSIGN_OR_RETURN(Certificate certificate, CertifyOrder(steps));

  Executable executable;
  executable.name = graph.name();
  executable.backend = backend.name();
  executable.mesh = graph.mesh();
  executable.threads = options.threads;
  executable.buffers = plan.buffers;
  executable.constants = std::move(program.constants);
  executable.inputs = std::move(program.inputs);
  executable.results = std::move(program.results);
  executable.states = std::move(program.states);
  executable.steps = std::move(steps);
  executable.num_collectives = program.num_collectives;
  executable.certificate = std::move(certificate);
  executable.graph_text = graph.ToString();
  return executable;
}

}  // namespace lockstep
