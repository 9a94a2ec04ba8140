#include "backends/codegen/emit_loop.h"

#include "backends/codegen/loop_function.h"

namespace lockstep {

absl::Status CheckSupported(const LoopNest& nest, bool has_libm) {
  for (const Element& element : nest.elements) {
    if (element.kind != Element::Kind::kOp) continue;
    const Node& node = *element.node;
    if (!ElementEmitter::Supports(node.op())) return Unimplemented() << "fusion: no code for " << node.Describe();
    if (!has_libm && ElementEmitter::CallsLibm(node)) {
      return Unimplemented() << "fusion: no code for " << node.Describe() << ": in " << DTypeName(node.type().dtype)
                             << " it is a function of the C library, which the target does not have";
    }
  }
  return absl::OkStatus();
}

// This is here because a body that can be planned but has no code is not a loop either.
absl::StatusOr<LoopInfo> AnalyzeLoop(const Graph& body, const LoopSizes& sizes, bool has_libm) {
  ASSIGN_OR_RETURN(const LoopPlan plan, PlanLoop(body, sizes));
  RETURN_IF_ERROR(CheckSupported(plan, has_libm));
  return plan.info;
}

absl::Status EmitLoop(const Graph& body, const LoopPlan& plan, const EmitTarget& target, const std::string& run_name,
                      const std::string& finish_name, llvm::Module& module) {
  RETURN_IF_ERROR(CheckSupported(plan, target.has_libm));
  LoopFunction(body, plan, target, run_name, /*has_range=*/true, module).EmitRun();
  if (plan.info.has_finish) LoopFunction(body, plan, target, finish_name, /*has_range=*/false, module).EmitFinish();
  return absl::OkStatus();
}

}  // namespace lockstep
