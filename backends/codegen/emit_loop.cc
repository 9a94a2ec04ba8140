#include "backends/codegen/emit_loop.h"

#include "backends/codegen/loop_function.h"

namespace lockstep {

absl::Status EmitLoop(const Graph& body, const LoopPlan& plan, const EmitTarget& target, const std::string& run_name,
                      const std::string& finish_name, llvm::Module& module) {
  for (const Element& element : plan.elements) {
    if (element.kind == Element::Kind::kOp && !ElementEmitter::Supports(*element.node)) {
      return Unimplemented() << "fusion: no code for " << element.node->Describe();
    }
  }
  LoopFunction(body, plan, target, run_name, /*has_range=*/true, module).EmitRun();
  if (plan.info.has_finish) LoopFunction(body, plan, target, finish_name, /*has_range=*/false, module).EmitFinish();
  return absl::OkStatus();
}

}  // namespace lockstep
