#include "backends/codegen/loop_compiler.h"

#include <algorithm>
#include <cmath>
#include <map>

#include "backends/codegen/body_key.h"
#include "backends/codegen/emit_loop.h"
#include "backends/codegen/module_compiler.h"
#include "backends/codegen/run_jobs.h"
#include "core/op_def.h"
#include "llvm/ExecutionEngine/Orc/LLJIT.h"

namespace lockstep {
namespace {

// Returns the f64 functions that code of emit_element.cc calls for each lane.
llvm::orc::SymbolMap RuntimeSymbols(llvm::orc::LLJIT& jit) {
  llvm::orc::SymbolMap symbols;
  const auto add = [&](const char* name, auto* function) {
    symbols[jit.mangleAndIntern(name)] = {llvm::orc::ExecutorAddr::fromPtr(function), llvm::JITSymbolFlags::Callable};
  };
  using Unary = double (*)(double);
  using Binary = double (*)(double, double);
  add("exp", static_cast<Unary>(std::exp));
  add("log", static_cast<Unary>(std::log));
  add("log1p", static_cast<Unary>(std::log1p));
  add("tanh", static_cast<Unary>(std::tanh));
  add("erf", static_cast<Unary>(std::erf));
  add("sin", static_cast<Unary>(std::sin));
  add("cos", static_cast<Unary>(std::cos));
  add("tan", static_cast<Unary>(std::tan));
  add("asin", static_cast<Unary>(std::asin));
  add("acos", static_cast<Unary>(std::acos));
  add("atan", static_cast<Unary>(std::atan));
  add("sinh", static_cast<Unary>(std::sinh));
  add("cosh", static_cast<Unary>(std::cosh));
  add("asinh", static_cast<Unary>(std::asinh));
  add("acosh", static_cast<Unary>(std::acosh));
  add("atanh", static_cast<Unary>(std::atanh));
  add("pow", static_cast<Binary>(std::pow));
  add("fmod", static_cast<Binary>(std::fmod));
  return symbols;
}

llvm::Expected<llvm::orc::JITTargetMachineBuilder> TargetBuilder(const LoopCompiler::Options& options) {
  RegisterTargets();
  auto builder = llvm::orc::JITTargetMachineBuilder::detectHost();
  if (!builder) return builder;
  if (!options.cpu.empty()) {
    *builder = llvm::orc::JITTargetMachineBuilder(builder->getTargetTriple());
    builder->setCPU(options.cpu);
    std::vector<std::string> features;
    for (size_t at = 0; at < options.features.size();) {
      const size_t end = std::min(options.features.find(',', at), options.features.size());
      features.push_back(options.features.substr(at, end - at));
      at = end + 1;
    }
    builder->addFeatures(features);
  }
  // A multiplication and an addition in the body are rounded separately on all machines.
  builder->getOptions().AllowFPOpFusion = llvm::FPOpFusion::Strict;
  builder->setCodeGenOptLevel(llvm::CodeGenOptLevel::Default);
  builder->setRelocationModel(llvm::Reloc::PIC_);
  return builder;
}

}  // namespace

class LoopCompiler::Impl {
 public:
  Impl(llvm::orc::JITTargetMachineBuilder target, std::unique_ptr<llvm::orc::LLJIT> jit, const LoopSizes& sizes)
      : target_(std::move(target)), jit_(std::move(jit)), sizes_(sizes) {}

  absl::StatusOr<std::vector<CompiledLoop>> Compile(std::span<const Graph* const> bodies) {
    struct Job {
      const Graph* body;
      std::string name;
      LoopPlan plan;
      absl::Status status;
      std::unique_ptr<llvm::MemoryBuffer> object;
    };
    std::map<std::string, Job> jobs;  // new bodies, each once
    std::vector<std::string> keys;
    for (const Graph* body : bodies) {
      const std::string& key = keys.emplace_back(BodyKey(*body));
      if (compiled_.contains(key) || jobs.contains(key)) continue;
      ASSIGN_OR_RETURN(LoopPlan plan, PlanLoop(*body, sizes_));
      jobs[key] = {body, "loop" + std::to_string(next_name_++), std::move(plan), absl::OkStatus(), nullptr};
    }
    std::vector<Job*> todo;
    for (auto& [key, job] : jobs) todo.push_back(&job);
    RunJobs(todo.size(), [&](const std::function<size_t()>& next) {
      auto compiler = ModuleCompiler::Create(target_);
      for (size_t i = next(); i < todo.size(); i = next()) {
        Job& job = *todo[i];
        if (!compiler.ok()) job.status = compiler.status();
        else job.status = CompileOne(*job.body, job.plan, job.name, **compiler, job.object);
      }
    });
    for (auto& [key, job] : jobs) {
      RETURN_IF_ERROR(job.status);
      RETURN_IF_ERROR(ToStatus(jit_->addObjectFile(std::move(job.object)), "adding an object"));
      CompiledLoop loop;
      loop.info = job.plan.info;
      ASSIGN_OR_RETURN(loop.run, Find<CompiledLoop::RunFn>(job.name + "_run"));
      if (loop.info.has_finish) {
        ASSIGN_OR_RETURN(loop.finish, Find<CompiledLoop::FinishFn>(job.name + "_finish"));
      }
      compiled_.emplace(key, std::move(loop));
    }
    std::vector<CompiledLoop> loops;
    for (const std::string& key : keys) loops.push_back(compiled_.at(key));
    return loops;
  }

  std::string target() const {
    return target_.getTargetTriple().str() + " " + target_.getCPU() + " " + target_.getFeatures().getString();
  }

 private:
  static absl::Status CompileOne(const Graph& body, const LoopPlan& plan, const std::string& name,
                                 ModuleCompiler& compiler, std::unique_ptr<llvm::MemoryBuffer>& object) {
    llvm::LLVMContext context;
    llvm::Module module(name, context);
    compiler.Prepare(module);
    RETURN_IF_ERROR(EmitLoop(body, plan, {.instructions = {.has_fma = compiler.has_fma()}}, name + "_run",
                             name + "_finish", module));
    ASSIGN_OR_RETURN(object, compiler.Compile(module));
    return absl::OkStatus();
  }

  template <typename Function>
  absl::StatusOr<Function> Find(const std::string& name) {
    auto address = jit_->lookup(name);
    if (!address) return ToStatus(address.takeError(), "linking");
    return address->toPtr<Function>();
  }

  llvm::orc::JITTargetMachineBuilder target_;
  std::unique_ptr<llvm::orc::LLJIT> jit_;
  const LoopSizes sizes_;
  std::map<std::string, CompiledLoop> compiled_;
  int64_t next_name_ = 0;
};

absl::StatusOr<std::unique_ptr<LoopCompiler>> LoopCompiler::Create(Options options) {
  auto target = TargetBuilder(options);
  if (!target) return ToStatus(target.takeError(), "detecting the host");
  auto jit = llvm::orc::LLJITBuilder().setJITTargetMachineBuilder(*target).create();
  if (!jit) return ToStatus(jit.takeError(), "creating a JIT");
  llvm::orc::JITDylib& library = (*jit)->getMainJITDylib();
  RETURN_IF_ERROR(ToStatus(library.define(llvm::orc::absoluteSymbols(RuntimeSymbols(**jit))), "defining symbols"));
  // Functions that instruction selection calls on processors without the instruction, such as floorf or a conversion of
  // f16.
  auto process =
      llvm::orc::DynamicLibrarySearchGenerator::GetForCurrentProcess((*jit)->getDataLayout().getGlobalPrefix());
  if (!process) return ToStatus(process.takeError(), "searching the process");
  library.addGenerator(std::move(*process));
  return std::unique_ptr<LoopCompiler>(
      new LoopCompiler(std::make_unique<Impl>(std::move(*target), std::move(*jit), options.sizes)));
}

LoopCompiler::LoopCompiler(std::unique_ptr<Impl> impl) : impl_(std::move(impl)) {}
LoopCompiler::~LoopCompiler() = default;

absl::StatusOr<CompiledLoop> LoopCompiler::Compile(const Graph& body) {
  const Graph* const bodies[] = {&body};
  ASSIGN_OR_RETURN(const std::vector<CompiledLoop> loops, Compile(bodies));
  return loops[0];
}

absl::StatusOr<std::vector<CompiledLoop>> LoopCompiler::Compile(std::span<const Graph* const> bodies) {
  return impl_->Compile(bodies);
}

std::string LoopCompiler::target() const { return impl_->target(); }

absl::StatusOr<LoopCompiler::Target> LoopCompiler::TargetOf(const Options& options) {
  auto builder = TargetBuilder(options);
  if (!builder) return ToStatus(builder.takeError(), "detecting the host");
  Target target;
  target.cpu = builder->getCPU();
  for (const std::string& feature : builder->getFeatures().getFeatures()) {
    if (feature.starts_with('+')) target.features.push_back(feature);
  }
  std::sort(target.features.begin(), target.features.end());
  return target;
}

}  // namespace lockstep
