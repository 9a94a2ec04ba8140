#include "backends/cpu/processor.h"

#include "llvm/Config/llvm-config.h"
#include "oneapi/dnnl/dnnl.h"
#include "oneapi/dnnl/dnnl_debug.h"

namespace lockstep::cpu {
namespace {

struct InstructionSet {
  std::string_view name;
  dnnl_cpu_isa_t onednn;
  std::string_view llvm;  // a processor with exactly this instruction set
};

constexpr InstructionSet kInstructionSets[] = {
    {"sse41", dnnl_cpu_isa_sse41, "x86-64-v2"},
    {"avx2", dnnl_cpu_isa_avx2, "x86-64-v3"},
    {"avx512", dnnl_cpu_isa_avx512_core, "x86-64-v4"},
};

const InstructionSet* Find(std::string_view name) {
  for (const InstructionSet& set : kInstructionSets) {
    if (set.name == name) return &set;
  }
  return nullptr;
}

// Returns a name such as "avx512_core".
std::string NameOf(dnnl_cpu_isa_t isa) {
  const std::string name = dnnl_cpu_isa2str(isa), prefix = "cpu_isa_";
  return name.starts_with(prefix) ? name.substr(prefix.size()) : name;
}

}  // namespace

absl::Status SetInstructionSet(std::string_view isa) {
  if (isa.empty()) return absl::OkStatus();
  const InstructionSet* set = Find(isa);
  if (set == nullptr) {
    return InvalidArgument() << "isa is " << Quoted(isa)
                             << ", expected sse41, avx2 or avx512, or empty for all that the "
                             << "processor has";
  }
  // oneDNN refuses this once it has read its setting. Querying the effective setting reads it, so the setting comes
  // first.
  (void)dnnl_set_max_cpu_isa(set->onednn);
  const dnnl_cpu_isa_t effective = dnnl_get_effective_cpu_isa();
  if (effective == set->onednn) return absl::OkStatus();
  if ((effective & set->onednn) != set->onednn) {
    return InvalidArgument() << "isa is " << isa << ", but oneDNN supports at most " << NameOf(effective)
                             << " on this processor, or in this process";
  }
  return FailedPrecondition() << "isa is " << isa << ", but oneDNN uses " << NameOf(effective)
                              << " in this process since an earlier compilation; set isa in the first one";
}

bool HasFastProducts(DType dtype) {
  const auto has = [](dnnl_cpu_isa_t isa) { return (dnnl_get_effective_cpu_isa() & isa) == isa; };
  if (dtype == DType::kF16) return has(dnnl_cpu_isa_avx512_core_fp16);
  if (has(dnnl_cpu_isa_avx512_core_amx)) return true;
  // Intel processors with AVX-512-FP16 (Sapphire Rapids and later) use AMX for bf16 products. If AMX is hidden, for
  // example by a virtual machine, only vdpbf16ps remains, which takes as long as four vfmadd231ps and computes only
  // twice as many products as one.
  return has(dnnl_cpu_isa_avx512_core_bf16) && !(__builtin_cpu_is("intel") && has(dnnl_cpu_isa_avx512_core_fp16));
}

LoopCompiler::Options LoopOptionsFor(std::string_view isa) {
  const InstructionSet* set = Find(isa);
  return {.cpu = set == nullptr ? "" : std::string(set->llvm), .features = "", .sizes = {}};
}

absl::StatusOr<std::string> ProcessorFingerprint(std::string_view isa) {
  const dnnl_version_t& version = *dnnl_version();
  ASSIGN_OR_RETURN(const LoopCompiler::Target target, LoopCompiler::TargetOf(LoopOptionsFor(isa)));
  std::string text = "oneDNN " + std::to_string(version.major) + "." + std::to_string(version.minor) + "." +
                     std::to_string(version.patch) + " (" + version.hash + ") with " +
                     NameOf(dnnl_get_effective_cpu_isa()) + "\nLLVM " + LLVM_VERSION_STRING + " for " + target.cpu;
  for (const std::string& feature : target.features) text += "\n" + feature;
  return text;
}

}  // namespace lockstep::cpu
