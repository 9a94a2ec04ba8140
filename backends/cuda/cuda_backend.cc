#include "backends/cuda/cuda_backend.h"

#include "backends/cuda/captured_steps.h"
#include "backends/cuda/emitters.h"
#include "backends/cuda/gpu.h"
#include "backends/cuda/kernels/kernel_text.h"
#include "backends/cuda/rank_device.h"
#include "core/op_def.h"
#include "llvm/Config/llvm-config.h"

namespace lockstep {
using cuda::EmitContext;

bool cuda::Supports(const Node& node) {
  if (node.is_constant() || node.op().has_trait(kKeepsOrder)) return true;
  if (node.op().collective() && ProgramBuilder::IsContiguous(node)) return true;
  return cuda::FindEmitter(node) != nullptr || cuda::SupportsLoop(node);
}

namespace {

absl::Status EmitNode(const Node& node, EmitContext& c) {
  if (c.builder().TakesRowMajor(node)) c.ReadAll(node);
  ASSIGN_OR_RETURN(const bool done, c.builder().LowerCommon(node));
  if (done) return absl::OkStatus();
  const cuda::Emitter* emitter = cuda::FindEmitter(node);
  if (emitter != nullptr) return Annotate(emitter->emit(node, c), node.Describe());
  if (cuda::SupportsLoop(node)) return cuda::EmitLoop(node, c);
  return Unimplemented() << node.Describe() << ": the cuda backend has no kernel for it; backend=\"cpu\" has one";
}

}  // namespace

absl::StatusOr<Program> cuda::LowerGraph(const Graph& graph, const LoweringContext& with) {
  EmitContext c(graph, with);
  const MatMulEpilogues epilogues = EpiloguesOf(graph);
  for (const Node& node : graph.nodes()) {
    if (!c.builder().part().Computes(node)) continue;
    if (epilogues.products.count(&node) > 0 || c.attention_views().Contains(node)) continue;  // emitted with another
    c.Begin(node);
    const auto found = epilogues.by_fusion.find(&node);
    if (found == epilogues.by_fusion.end()) {
      RETURN_IF_ERROR(EmitNode(node, c));
    } else {
      RETURN_IF_ERROR(EmitMatMulWithEpilogue(node, found->second, c));
    }
  }
  ASSIGN_OR_RETURN(Program program, c.builder().Finish([&](Value value) -> absl::StatusOr<int> {
    return c.ReadAs(*value.node, value, /*channels_last=*/false);
  }));
  const std::string architecture = c.gpu().architecture;
  const GridCompiler compiler(
      with.images.loops ? with.images.loops : [&] { return CreatePtxTarget(architecture); }, c.target().grid);
  RETURN_IF_ERROR(c.CompileLoops(compiler));
  return program;
}

namespace {

class CudaBackend final : public Backend {
 public:
  CudaBackend(cuda::Images images, cuda::KeptContexts* contexts) : images_(std::move(images)), contexts_(contexts) {}

  std::string_view name() const override { return "cuda"; }

  absl::StatusOr<Target> MakeTarget(const TargetOptions& options) const override {
    Target target;
    target.threads = 1;
    target.isa = options.isa;
    target.supports = [tf32 = options.tf32](const Node& node) {
      return cuda::Supports(node) && (tf32 || !cuda::NeedsTf32(node));
    };
    target.rounds_sum = cuda::RoundsFilterGradient;
    if (options.isa.empty()) {
      ASSIGN_OR_RETURN(const cuda::DriverApi* driver, cuda::Driver());
      ASSIGN_OR_RETURN(target.gpu, cuda::GpuOfThisMachine(*driver));
    } else {
      ASSIGN_OR_RETURN(target.gpu, cuda::GpuByName(options.isa));
    }
    target.gpu->tf32 = options.tf32;
    target.grid.sums_in_pairs = target.gpu->slow_f64;
    target.fast_f64 = !target.gpu->slow_f64;
    target.tune = options.tune;
    target.ceilings = [gpu = *target.gpu]() -> absl::StatusOr<Ceilings> {
      if (gpu.ceilings) return *gpu.ceilings;
      return NotFound() << "the bandwidth and the operations a second of " << gpu.name << " are not known";
    };
    target.fingerprint = target.gpu->name + ", " + target.gpu->architecture + (options.tf32 ? ", tf32" : "") +
                         (options.tune ? ", algorithms by time" : "") + "\nLLVM " + LLVM_VERSION_STRING;
    return target;
  }

  absl::StatusOr<RankDevice> OpenDevice(Communicator& world) const override {
    ASSIGN_OR_RETURN(const cuda::DriverApi* driver, cuda::Driver());
    RETURN_IF_ERROR(driver->Check(driver->Init(0), "cuInit"));
    return cuda::OpenRankDevice(*driver, world, contexts_);
  }

  absl::StatusOr<Program> Lower(const Graph& graph, const Target& target) const override {
    auto preparation = std::make_shared<cuda::Preparation>(graph.name(), *target.gpu, target.tune);
    ASSIGN_OR_RETURN(Program program,
                     cuda::LowerGraph(graph, {.target = target, .images = images_, .preparation = *preparation}));
    program.prepare = [preparation](Device& device, Communicator& communicator) {
      return preparation->Run(static_cast<cuda::CudaDevice&>(device), communicator);
    };
    program.combined_run = std::make_unique<cuda::CapturedSteps>();
    return program;
  }

 private:
  const cuda::Images images_;
  cuda::KeptContexts* const contexts_;
};

}  // namespace

std::unique_ptr<Backend> CreateCudaBackend() {
  return CreateCudaBackend(
      {}, [](std::string_view family) { return std::string(cuda::KernelText(family)); }, &cuda::ContextsOfProcess());
}

std::unique_ptr<Backend> CreateCudaBackend(GridCompiler::MakeTarget make_images,
                                           std::function<std::string(std::string_view family)> kernel_texts,
                                           cuda::KeptContexts* contexts) {
  return std::make_unique<CudaBackend>(cuda::Images{std::move(make_images), std::move(kernel_texts)}, contexts);
}

}  // namespace lockstep
