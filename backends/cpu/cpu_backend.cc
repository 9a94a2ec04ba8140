#include "backends/cpu/cpu_backend.h"

#include "backends/cpu/ceilings.h"
#include "backends/cpu/emit_context.h"
#include "backends/cpu/emitters.h"
#include "backends/cpu/processor.h"
#include "backends/cpu/scoped_threads.h"
#include "backends/planning/refusals.h"
#include "core/op_def.h"

namespace lockstep {
namespace {

using cpu::EmitContext;

bool Supports(const Node& node) {
  if (node.is_constant() || node.op().has_trait(kKeepsOrder) || node.op().has_trait(kCollective)) return true;
  if (cpu::FindEmitter(node.op_name()) != nullptr || cpu::SupportsLoop(node)) return true;
  return node.op().eval() && !node.op().decompose();  // simpler ops are faster than the reference meaning
}

// Requires a node with 16-bit float operands.
bool PrefersF32(const Node& node) {
  const cpu::Emitter* const emitter = cpu::FindEmitter(node.op_name());
  if (emitter == nullptr || emitter->has_fast_16_bit_kernel == nullptr) return false;
  return !cpu::HasFastProducts(node.operand(0).dtype()) || !emitter->has_fast_16_bit_kernel(node);
}

class CpuBackend : public Backend {
 public:
  std::string_view name() const override { return "cpu"; }

  absl::StatusOr<Target> MakeTarget(const TargetOptions& options) const override {
    if (options.threads < 1) return InvalidArgument() << "threads is " << options.threads << ", expected at least 1";
    RETURN_IF_ERROR(cpu::SetInstructionSet(options.isa));
    Target target;
    target.threads = options.threads;
    target.isa = options.isa;
    target.supports = Supports;
    target.prefers_f32 = PrefersF32;
    target.ceilings = [threads = options.threads] { return cpu::MeasureCeilings(threads); };
    ASSIGN_OR_RETURN(target.fingerprint, cpu::ProcessorFingerprint(options.isa));
    return target;
  }

  absl::StatusOr<RankDevice> OpenDevice(Communicator& world) const override { return OpenHostDevice(world); }

  absl::StatusOr<Program> Lower(const Graph& graph, const Target& target) const override {
    return cpu::LowerGraph(graph, target);
  }
};

absl::Status EmitNode(const Node& node, EmitContext& c) {
  if (c.builder().TakesRowMajor(node)) RETURN_IF_ERROR(c.ReadAll(node).status());
  ASSIGN_OR_RETURN(const bool done, c.builder().LowerCommon(node));
  if (done) return absl::OkStatus();
  const cpu::Emitter* emitter = cpu::FindEmitter(node.op_name());
  if (emitter == nullptr) return cpu::SupportsLoop(node) ? cpu::EmitLoop(node, c) : cpu::EmitReference(node, c);
  absl::Status status = emitter->emit(node, c);
  if (absl::IsUnimplemented(status) && emitter->fallback != nullptr) status = emitter->fallback(node, c);
  return Annotate(status, node.Describe());
}

}  // namespace

absl::StatusOr<Program> cpu::LowerGraph(const Graph& graph, const Target& target) {
  const cpu::ScopedThreads threads(target.threads);
  ASSIGN_OR_RETURN(const dnnl::engine engine,
                   cpu::CallOneDnn("engine", [] { return dnnl::engine(dnnl::engine::kind::cpu, 0); }));
  EmitContext c(graph, target, engine);
  FirstRefusals refusals(graph);
  for (const Node& node : graph.nodes()) {
    const bool is_here = c.builder().part().Computes(node), is_first = refusals.Contain(node);
    if (is_here) RETURN_IF_ERROR(EmitNode(node, c));
    if (is_here && is_first) c.builder().MarkRefusal();
  }
  absl::StatusOr<Program> program = c.builder().Finish([&](Value value) { return c.RowMajorOf(*value.node, value); });
  if (!program.ok()) return program.status();
  RETURN_IF_ERROR(c.CompileLoops());
  return program;
}

std::unique_ptr<Backend> CreateCpuBackend() { return std::make_unique<CpuBackend>(); }

}  // namespace lockstep
