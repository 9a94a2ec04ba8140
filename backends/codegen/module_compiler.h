// Compiles an LLVM module to an object file or assembly text for one target: the few optimizations that the emitter
// does not do itself, and instruction selection. Used by loop_compiler.cc and grid_compiler.cc; one thread at a time
// may use a ModuleCompiler.

#pragma once

#include <memory>
#include <string>

#include "core/status.h"
#include "llvm/ExecutionEngine/Orc/JITTargetMachineBuilder.h"
#include "llvm/IR/Module.h"
#include "llvm/Support/MemoryBuffer.h"
#include "llvm/Target/TargetMachine.h"

namespace lockstep {

// Registers the LLVM targets that code is compiled for: the host's and NVPTX. LLVM's list of targets has no lock, so
// code that may run concurrently must not register targets itself. Any thread may call it.
void RegisterTargets();

// Converts an LLVM error to a status, and consumes it.
absl::Status ToStatus(llvm::Error error, const char* doing);

class ModuleCompiler {
 public:
  static absl::StatusOr<std::unique_ptr<ModuleCompiler>> Create(llvm::orc::JITTargetMachineBuilder builder);
  explicit ModuleCompiler(std::unique_ptr<llvm::TargetMachine> machine) : machine_(std::move(machine)) {}

  bool has_fma() const;
  void Prepare(llvm::Module& module) const;  // sets the target's data layout and triple; called before code is emitted
  absl::StatusOr<std::unique_ptr<llvm::MemoryBuffer>> Compile(llvm::Module& module);
  absl::StatusOr<std::string> CompileToText(llvm::Module& module);

 private:
  void VerifyAndOptimize(llvm::Module& module);
  std::unique_ptr<llvm::TargetMachine> machine_;
};

}  // namespace lockstep
