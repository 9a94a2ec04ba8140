// A machine that grid kernels are compiled for: what its threads ask of it, and how a module becomes an image that it
// loads. PTX is the one of every GPU; tests have one that is the host.

#pragma once

#include <memory>
#include <string>

#include "backends/codegen/grid_function.h"
#include "core/status.h"
#include "llvm/IR/Module.h"

namespace lockstep {

// One thread at a time uses a GridTarget.
class GridTarget {
 public:
  virtual ~GridTarget() = default;
  virtual ThreadEmitter& machine() = 0;
  virtual void Prepare(llvm::Module& module) = 0;  // before anything is emitted
  virtual absl::StatusOr<std::string> Assemble(llvm::Module& module) = 0;
};

// PTX for GPUs of at least `architecture`, of PtxArchitectureFor it (ptx_architecture.h), whose errors it has.
absl::StatusOr<std::unique_ptr<GridTarget>> CreatePtxTarget(const std::string& architecture);

}  // namespace lockstep
