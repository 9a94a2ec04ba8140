#include "backends/codegen/loop_compiler.h"

#include <algorithm>
#include <atomic>
#include <cmath>
#include <map>
#include <mutex>
#include <thread>
#include <unordered_map>

#include "backends/codegen/emit_loop.h"
#include "backends/codegen/module_compiler.h"
#include "core/op_def.h"
#include "llvm/ExecutionEngine/Orc/LLJIT.h"
#include "llvm/Support/TargetSelect.h"

namespace lockstep {
namespace {

// --- What compiled code calls ----------------------------------------------------------------------------------------

uint64_t PowUnsigned(uint64_t x, uint64_t y) {
  uint64_t power = 1;
  for (; y != 0; y /= 2, x *= x) {
    if (y % 2 != 0) power *= x;
  }
  return power;
}

// A negative power is truncated toward zero, as the op `pow` says; that of zero, which is an error, gives 0.
int64_t PowSigned(int64_t x, int64_t y) {
  if (y < 0) return x == 1 ? 1 : x == -1 ? (y % 2 != 0 ? -1 : 1) : 0;
  return static_cast<int64_t>(PowUnsigned(static_cast<uint64_t>(x), static_cast<uint64_t>(y)));
}

llvm::orc::SymbolMap RuntimeSymbols(llvm::orc::LLJIT& jit) {
  llvm::orc::SymbolMap symbols;
  const auto add = [&](const char* name, auto* function) {
    symbols[jit.mangleAndIntern(name)] = {llvm::orc::ExecutorAddr::fromPtr(function), llvm::JITSymbolFlags::Callable};
  };
  using OfDouble = double (*)(double);
  using OfFloat = float (*)(float);
  // Of f32 too: what emit_element.cc calls for every lane.
  const auto add_both = [&](const std::string& name, OfDouble of_double, OfFloat of_float) {
    add(name.c_str(), of_double);
    add((name + "f").c_str(), of_float);
  };
  add("sin", static_cast<OfDouble>(std::sin));
  add("cos", static_cast<OfDouble>(std::cos));
  add("tan", static_cast<OfDouble>(std::tan));
  add_both("asin", std::asin, std::asin);
  add_both("acos", std::acos, std::acos);
  add_both("atan", std::atan, std::atan);
  add_both("sinh", std::sinh, std::sinh);
  add_both("cosh", std::cosh, std::cosh);
  add_both("asinh", std::asinh, std::asinh);
  add_both("acosh", std::acosh, std::acosh);
  add_both("atanh", std::atanh, std::atanh);
  add("exp", static_cast<OfDouble>(std::exp));
  add("log", static_cast<OfDouble>(std::log));
  add("log1p", static_cast<OfDouble>(std::log1p));
  add("tanh", static_cast<OfDouble>(std::tanh));
  add("erf", static_cast<OfDouble>(std::erf));
  add("pow", static_cast<double (*)(double, double)>(std::pow));
  add("powf", static_cast<float (*)(float, float)>(std::pow));
  add("fmod", static_cast<double (*)(double, double)>(std::fmod));
  add("fmodf", static_cast<float (*)(float, float)>(std::fmod));
  add("lockstep_pow_i64", &PowSigned);
  add("lockstep_pow_u64", &PowUnsigned);
  return symbols;
}

// The body as text in which values are numbers: equal for bodies that differ in names alone.
std::string Fingerprint(const Graph& body) {
  std::unordered_map<Value, size_t, ValueHash> number;
  std::string text;
  const auto define = [&](Value value) {
    const size_t next = number.size();
    number.emplace(value, next);
    text += " " + value.type().ToString();
  };
  const auto use = [&](Value value) { text += " %" + std::to_string(number.at(value)); };
  for (const Input& input : body.inputs()) define(input.value);
  for (const Node& node : body.nodes()) {
    text += "\n" + node.op_name();
    for (Value operand : node.operands()) use(operand);
    text += AttributesToString(node.attributes()) + " :";
    for (size_t i = 0; i < node.num_results(); ++i) define({const_cast<Node*>(&node), static_cast<int>(i)});
  }
  text += "\nreturn";
  for (const Result& result : body.results()) use(result.value);
  return text;
}

llvm::Expected<llvm::orc::JITTargetMachineBuilder> TargetBuilder(const LoopCompiler::Options& options) {
  static std::once_flag once;
  std::call_once(once, [] {
    llvm::InitializeNativeTarget();
    llvm::InitializeNativeTargetAsmPrinter();
  });
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
  // A multiplication and an addition of the body are two roundings on every machine.
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
    std::map<std::string, Job> jobs;  // those that are new, each once
    std::vector<std::string> keys;
    for (const Graph* body : bodies) {
      const std::string& key = keys.emplace_back(Fingerprint(*body));
      if (compiled_.contains(key) || jobs.contains(key)) continue;
      ASSIGN_OR_RETURN(LoopPlan plan, PlanLoop(*body, sizes_));
      jobs[key] = {body, "loop" + std::to_string(next_name_++), std::move(plan), absl::OkStatus(), nullptr};
    }
    std::vector<Job*> todo;
    for (auto& [key, job] : jobs) todo.push_back(&job);
    std::atomic<size_t> next = 0;
    const auto work = [&] {
      auto compiler = ModuleCompiler::Create(target_);
      for (size_t i = next++; i < todo.size(); i = next++) {
        Job& job = *todo[i];
        if (!compiler.ok()) job.status = compiler.status();
        else job.status = CompileOne(*job.body, job.plan, job.name, **compiler, job.object);
      }
    };
    const size_t threads = std::min<size_t>(todo.size(), std::max(1u, std::thread::hardware_concurrency()));
    std::vector<std::thread> others;
    for (size_t i = 1; i < threads; ++i) others.emplace_back(work);
    if (!todo.empty()) work();
    for (std::thread& other : others) other.join();

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
    RETURN_IF_ERROR(EmitLoop(body, plan, {.has_fma = compiler.has_fma()}, name + "_run", name + "_finish", module));
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
  // What instruction selection may call on processors without the instruction, such as floorf or a conversion of f16.
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
