#include "backends/codegen/module_compiler.h"

#include <mutex>

#include "core/check.h"
#include "llvm/ExecutionEngine/Orc/CompileUtils.h"
#include "llvm/IR/LegacyPassManager.h"
#include "llvm/IR/Verifier.h"
#include "llvm/MC/MCSubtargetInfo.h"
#include "llvm/Passes/PassBuilder.h"
#include "llvm/Support/TargetSelect.h"
#include "llvm/Support/raw_ostream.h"

namespace lockstep {

void RegisterTargets() {
  static std::once_flag once;
  std::call_once(once, [] {
    llvm::InitializeNativeTarget();
    llvm::InitializeNativeTargetAsmPrinter();
    LLVMInitializeNVPTXTargetInfo();
    LLVMInitializeNVPTXTarget();
    LLVMInitializeNVPTXTargetMC();
    LLVMInitializeNVPTXAsmPrinter();
  });
}

absl::Status ToStatus(llvm::Error error, const char* doing) {
  if (!error) return absl::OkStatus();
  return Internal() << "LLVM, " << doing << ": " << llvm::toString(std::move(error));
}

absl::StatusOr<std::unique_ptr<ModuleCompiler>> ModuleCompiler::Create(llvm::orc::JITTargetMachineBuilder builder) {
  auto machine = builder.createTargetMachine();
  if (!machine) return ToStatus(machine.takeError(), "creating a target machine");
  return std::make_unique<ModuleCompiler>(std::move(*machine));
}

bool ModuleCompiler::has_fma() const { return machine_->getMCSubtargetInfo()->checkFeatures("+fma"); }

void ModuleCompiler::Prepare(llvm::Module& module) const {
  module.setDataLayout(machine_->createDataLayout());
  module.setTargetTriple(machine_->getTargetTriple().str());
}

void ModuleCompiler::VerifyAndOptimize(llvm::Module& module) {
  std::string problem;
  llvm::raw_string_ostream stream(problem);
  LOCKSTEP_CHECK(!llvm::verifyModule(module, &stream)) << problem;
  llvm::LoopAnalysisManager loops;
  llvm::FunctionAnalysisManager functions;
  llvm::CGSCCAnalysisManager components;
  llvm::ModuleAnalysisManager modules;
  llvm::PassBuilder builder(machine_.get());
  builder.registerModuleAnalyses(modules);
  builder.registerCGSCCAnalyses(components);
  builder.registerFunctionAnalyses(functions);
  builder.registerLoopAnalyses(loops);
  builder.crossRegisterProxies(loops, functions, components, modules);
  llvm::ModulePassManager passes;
  // Moves accumulators into registers, merges common code, and hoists invariant code out of loops. The emitter has
  // already vectorized and unrolled.
  llvm::cantFail(builder.parsePassPipeline(passes,
                                           "function(sroa,early-cse<memssa>,instcombine<no-verify-fixpoint>,"
                                           "simplifycfg,loop-mssa(licm),early-cse,simplifycfg)"));
  passes.run(module, modules);
}

absl::StatusOr<std::unique_ptr<llvm::MemoryBuffer>> ModuleCompiler::Compile(llvm::Module& module) {
  VerifyAndOptimize(module);
  auto object = llvm::orc::SimpleCompiler(*machine_)(module);
  if (!object) return ToStatus(object.takeError(), "compiling");
  return std::move(*object);
}

absl::StatusOr<std::string> ModuleCompiler::CompileToText(llvm::Module& module) {
  VerifyAndOptimize(module);
  llvm::SmallString<0> text;
  llvm::raw_svector_ostream stream(text);
  llvm::legacy::PassManager passes;
  if (machine_->addPassesToEmitFile(passes, stream, nullptr, llvm::CodeGenFileType::AssemblyFile))
    return Internal() << "LLVM writes no assembly text for " << machine_->getTargetTriple().str();
  passes.run(module);
  return std::string(text);
}

}  // namespace lockstep
