#include "backends/codegen/emit_loop.h"

#include "backends/codegen/loop_function.h"

namespace lockstep {
namespace {

absl::Status CheckSupported(const LoopPlan& plan) {
  for (const Element& element : plan.elements) {
    if (element.kind == Element::Kind::kOp && !ElementEmitter::Supports(element.node->op())) {
      return Unimplemented() << "fusion: no code for " << element.node->Describe();
    }
  }
  return absl::OkStatus();
}

}  // namespace

// Here, because what can be planned but has no code is no loop either.
absl::StatusOr<LoopInfo> AnalyzeLoop(const Graph& body, const LoopSizes& sizes) {
  ASSIGN_OR_RETURN(const LoopPlan plan, PlanLoop(body, sizes));
  RETURN_IF_ERROR(CheckSupported(plan));
  return plan.info;
}

absl::Status EmitLoop(const Graph& body, const LoopPlan& plan, const EmitTarget& target, const std::string& run_name,
                      const std::string& finish_name, llvm::Module& module) {
  RETURN_IF_ERROR(CheckSupported(plan));
  LoopFunction(body, plan, target, run_name, /*has_range=*/true, module).EmitRun();
  if (plan.info.has_finish) LoopFunction(body, plan, target, finish_name, /*has_range=*/false, module).EmitFinish();
  return absl::OkStatus();
}

}  // namespace lockstep
