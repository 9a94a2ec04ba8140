// Emits the code of a planned loop for a CPU: a function that runs a range of units, and one that combines the chunks
// of reductions. The nest is emitted with vectors, so that little optimization is left to LLVM and the order of every
// sum is known.

#pragma once

#include <string>

#include "backends/codegen/emit_element.h"
#include "backends/loops/loop_plan.h"

namespace lockstep {

struct EmitTarget {
  math::TargetInstructions instructions;
  bool has_libm = true;  // code may call functions of the C library, which some ops of f64 need
};

// Returns Unimplemented, naming the node, if ElementEmitter has no code for one of the nest's ops, or none without
// libm.
absl::Status CheckSupported(const LoopNest& nest, bool has_libm);

// Adds to `module` the functions that CompiledLoop::run and CompiledLoop::finish point to; the second one if
// plan.info.has_finish. Returns Unimplemented, naming the node, for an op for which ElementEmitter has no code, or none
// for this target. Without libm the module declares no functions except LLVM's intrinsics.
absl::Status EmitLoop(const Graph& body, const LoopPlan& plan, const EmitTarget& target, const std::string& run_name,
                      const std::string& finish_name, llvm::Module& module);

}  // namespace lockstep
