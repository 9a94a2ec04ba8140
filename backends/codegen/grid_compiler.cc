#include "backends/codegen/grid_compiler.h"

#include <map>

#include "backends/codegen/body_key.h"
#include "backends/codegen/emit_loop.h"
#include "backends/codegen/run_jobs.h"

namespace lockstep {
namespace {

constexpr char kRun[] = "lockstep_loop", kFinish[] = "lockstep_loop_finish";

struct Job {
  const Graph* body;
  GridPlan plan;
  absl::Status status;
  CompiledGrid compiled;
};

absl::Status CompileOne(Job& job, GridTarget& target) {
  llvm::LLVMContext context;
  llvm::Module module(job.body->name(), context);
  target.Prepare(module);
  GridFunction(*job.body, job.plan, GridFunction::Part::kRun, target.machine(), kRun, module).Emit();
  if (job.plan.has_finish())
    GridFunction(*job.body, job.plan, GridFunction::Part::kFinish, target.machine(), kFinish, module).Emit();
  ASSIGN_OR_RETURN(std::string image, target.Assemble(module));
  job.compiled.image = std::make_shared<const std::string>(std::move(image));
  return absl::OkStatus();
}

CompiledGrid LaunchesOf(const GridPlan& plan) {
  CompiledGrid grid;
  grid.run = {kRun, plan.kept_blocks(), plan.num_chunks, plan.threads};
  if (plan.has_finish()) grid.finish = {kFinish, plan.finish_blocks(), 1, GridPlan::kFinishThreads};
  grid.scratch_bytes = plan.scratch_bytes();
  grid.in_place = plan.in_place;
  return grid;
}

}  // namespace

absl::StatusOr<GridPlan> AnalyzeGrid(const Graph& body, const GridSizes& sizes) {
  ASSIGN_OR_RETURN(GridPlan plan, PlanGrid(body, sizes));
  RETURN_IF_ERROR(CheckSupported(plan, /*has_libm=*/false));
  if (!plan.reductions.empty() && plan.shared_bytes() > GridPlan::kMostShared) {
    return Unimplemented() << "the kernel of @" << body.name() << " has blocks of " << plan.threads
                           << " threads that share " << plan.shared_bytes() << " bytes of memory, and a GPU allows "
                           << GridPlan::kMostShared;
  }
  return plan;
}

absl::StatusOr<std::vector<CompiledGrid>> GridCompiler::Compile(std::span<const Graph* const> bodies) const {
  std::map<std::string, Job> jobs;  // each body once
  std::vector<std::string> keys;
  for (const Graph* body : bodies) {
    const std::string& key = keys.emplace_back(BodyKey(*body));
    if (jobs.contains(key)) continue;
    ASSIGN_OR_RETURN(GridPlan plan, AnalyzeGrid(*body, sizes_));
    CompiledGrid launches = LaunchesOf(plan);
    jobs.emplace(key, Job{body, std::move(plan), absl::OkStatus(), std::move(launches)});
  }
  std::vector<Job*> todo;
  for (auto& [key, job] : jobs) todo.push_back(&job);
  RunJobs(todo.size(), [&](const std::function<size_t()>& next) {
    absl::StatusOr<std::unique_ptr<GridTarget>> target = make_target_();
    for (size_t i = next(); i < todo.size(); i = next())
      todo[i]->status = target.ok() ? CompileOne(*todo[i], **target) : target.status();
  });
  std::vector<CompiledGrid> compiled;
  for (const std::string& key : keys) {
    const Job& job = jobs.at(key);
    RETURN_IF_ERROR(job.status);
    compiled.push_back(job.compiled);
  }
  return compiled;
}

}  // namespace lockstep
