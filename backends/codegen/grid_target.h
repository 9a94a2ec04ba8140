// A machine that grid kernels are compiled for: its operations for threads, and how a module becomes an image that it
// can load. PTX serves all GPUs; tests have a target that is the host.

#pragma once

#include <memory>
#include <string>

#include "backends/codegen/grid_function.h"
#include "core/status.h"
#include "llvm/IR/Module.h"

namespace lockstep {

// One thread at a time may use a GridTarget.
class GridTarget {
 public:
  virtual ~GridTarget() = default;
  virtual ThreadEmitter& machine() = 0;
  virtual void Prepare(llvm::Module& module) = 0;  // called before code is emitted
  virtual absl::StatusOr<std::string> Assemble(llvm::Module& module) = 0;
};

// Those of GPUs of kOldestCapability or later, with the PTX ISA's instructions ex2.approx.ftz.f32, max.NaN.f32,
// min.NaN.f32 and cvt.rn.bf16x2.f32.
math::TargetInstructions PtxInstructions();

// Creates a target that emits PTX for GPUs of at least `architecture`. The PTX is for the architecture that
// PtxArchitectureFor (ptx_architecture.h) returns; its errors are returned.
absl::StatusOr<std::unique_ptr<GridTarget>> CreatePtxTarget(const std::string& architecture);

}  // namespace lockstep
