#include <algorithm>

#include "backends/codegen/grid_target.h"
#include "backends/codegen/module_compiler.h"
#include "backends/codegen/ptx_architecture.h"
#include "backends/codegen/widen_ptx.h"
#include "core/attributes.h"
#include "llvm/IR/IntrinsicsNVPTX.h"
#include "llvm/MC/MCSubtargetInfo.h"
#include "llvm/MC/TargetRegistry.h"

namespace lockstep {
namespace {

constexpr unsigned kGlobal = 1, kSharedSpace = 3;  // address spaces of PTX, as LLVM numbers them

llvm::Value* ForEachLane(llvm::IRBuilderBase& b, llvm::Value* x, llvm::function_ref<llvm::Value*(llvm::Value*)> emit) {
  const auto* vector = llvm::dyn_cast<llvm::FixedVectorType>(x->getType());
  if (!vector) return emit(x);
  llvm::Value* result = nullptr;
  for (unsigned lane = 0; lane < vector->getNumElements(); ++lane) {
    llvm::Value* value = emit(b.CreateExtractElement(x, uint64_t{lane}));
    if (lane == 0) result = llvm::PoisonValue::get(vector->getWithNewType(value->getType()));
    result = b.CreateInsertElement(result, value, uint64_t{lane});
  }
  return result;
}

llvm::Value* EmitExp2(llvm::IRBuilderBase& b, llvm::Value* x) {
  return ForEachLane(b, x, [&](llvm::Value* lane) -> llvm::Value* {
    return b.CreateIntrinsic(llvm::Intrinsic::nvvm_ex2_approx_ftz_f, {}, {lane});
  });
}

// One instruction rounds two lanes.
llvm::Value* EmitToBf16(llvm::IRBuilderBase& b, llvm::Value* x) {
  const auto* vector = llvm::dyn_cast<llvm::FixedVectorType>(x->getType());
  if (!vector || vector->getNumElements() % 2 != 0) {
    llvm::Value* rounded = b.CreateFPTrunc(x, x->getType()->getWithNewType(b.getBFloatTy()));
    return b.CreateBitCast(rounded, x->getType()->getWithNewType(b.getInt16Ty()));
  }
  const unsigned lanes = vector->getNumElements();
  llvm::Value* pairs = llvm::PoisonValue::get(llvm::FixedVectorType::get(b.getInt32Ty(), lanes / 2));
  for (unsigned i = 0; i < lanes / 2; ++i) {
    llvm::Value* low = b.CreateExtractElement(x, uint64_t{2 * i});
    llvm::Value* high = b.CreateExtractElement(x, uint64_t{2 * i + 1});
    llvm::Value* pair = b.CreateIntrinsic(llvm::Intrinsic::nvvm_ff2bf16x2_rn, {}, {high, low});
    pairs = b.CreateInsertElement(pairs, b.CreateBitCast(pair, b.getInt32Ty()), uint64_t{i});
  }
  return b.CreateBitCast(pairs, llvm::FixedVectorType::get(b.getInt16Ty(), lanes));
}

class PtxThreadEmitter final : public ThreadEmitter {
 public:
  math::TargetInstructions instructions() const override { return PtxInstructions(); }
  unsigned address_space() const override { return kGlobal; }

  llvm::Value* Thread(llvm::IRBuilderBase& b) override {
    return b.CreateIntrinsic(llvm::Intrinsic::nvvm_read_ptx_sreg_tid_x, {}, {});
  }
  llvm::Value* Block(llvm::IRBuilderBase& b, int axis) override {
    return b.CreateIntrinsic(
        axis == 0 ? llvm::Intrinsic::nvvm_read_ptx_sreg_ctaid_x : llvm::Intrinsic::nvvm_read_ptx_sreg_ctaid_y, {}, {});
  }
  void Barrier(llvm::IRBuilderBase& b) override { b.CreateIntrinsic(llvm::Intrinsic::nvvm_barrier0, {}, {}); }
  llvm::Value* ShuffleXor(llvm::IRBuilderBase& b, llvm::Value* value, int mask) override {
    constexpr uint32_t kAllThreads = 0xffffffff, kWholeWarp = 0x1f;
    return b.CreateIntrinsic(
        llvm::Intrinsic::nvvm_shfl_sync_bfly_i32, {},
        {b.getInt32(kAllThreads), value, b.getInt32(static_cast<uint32_t>(mask)), b.getInt32(kWholeWarp)});
  }
  llvm::Value* Shared(llvm::IRBuilderBase& b, int64_t bytes) override {
    llvm::Type* type = llvm::ArrayType::get(b.getInt8Ty(), static_cast<uint64_t>(bytes));
    auto* memory = new llvm::GlobalVariable(*b.GetInsertBlock()->getModule(), type, /*isConstant=*/false,
                                            llvm::GlobalValue::InternalLinkage, llvm::UndefValue::get(type), "shared",
                                            nullptr, llvm::GlobalValue::NotThreadLocal, kSharedSpace);
    memory->setAlignment(llvm::Align(16));
    return memory;
  }
  void DeclareKernel(llvm::Function& function, int64_t threads) override {
    llvm::LLVMContext& context = function.getContext();
    llvm::NamedMDNode* annotations = function.getParent()->getOrInsertNamedMetadata("nvvm.annotations");
    const auto annotate = [&](const char* key, int64_t value) {
      llvm::Constant* number = llvm::ConstantInt::get(llvm::Type::getInt32Ty(context), static_cast<uint64_t>(value));
      annotations->addOperand(
          llvm::MDNode::get(context, {llvm::ValueAsMetadata::get(&function), llvm::MDString::get(context, key),
                                      llvm::ValueAsMetadata::get(number)}));
    };
    annotate("kernel", 1);
    annotate("maxntidx", threads);
  }
};

class PtxTarget final : public GridTarget {
 public:
  explicit PtxTarget(std::unique_ptr<ModuleCompiler> compiler) : compiler_(std::move(compiler)) {}
  ThreadEmitter& machine() override { return machine_; }
  void Prepare(llvm::Module& module) override { compiler_->Prepare(module); }
  absl::StatusOr<std::string> Assemble(llvm::Module& module) override {
    ASSIGN_OR_RETURN(const std::string ptx, compiler_->CompileToText(module));
    return WidenPtx(ptx);
  }

 private:
  const std::unique_ptr<ModuleCompiler> compiler_;
  PtxThreadEmitter machine_;
};

constexpr char kTriple[] = "nvptx64-nvidia-cuda";

absl::StatusOr<const llvm::Target*> FindTarget() {
  RegisterTargets();
  std::string problem;
  const llvm::Target* target = llvm::TargetRegistry::lookupTarget(kTriple, problem);
  if (target == nullptr) return Internal() << "LLVM: " << problem;
  return target;
}

// Returns 90 for "sm_90"; 0 for names of another form, such as "sm_90a", whose PTX runs on no other architecture.
int NumberOf(llvm::StringRef architecture) {
  int number = 0;
  const bool is_one = architecture.consume_front("sm_") && !architecture.starts_with("0") &&
                      !architecture.getAsInteger(10, number) && number > 0;
  return is_one ? number : 0;
}

}  // namespace

math::TargetInstructions PtxInstructions() {
  return {.has_fma = true, .has_maximum = true, .has_division = false, .exp2 = EmitExp2, .to_bf16 = EmitToBf16};
}

absl::StatusOr<std::string> PtxArchitectureFor(const std::string& architecture) {
  ASSIGN_OR_RETURN(const llvm::Target* const target, FindTarget());
  const int wanted = NumberOf(architecture);
  const std::unique_ptr<llvm::MCSubtargetInfo> info(target->createMCSubtargetInfo(kTriple, "", ""));
  int newest = 0;
  for (const llvm::SubtargetSubTypeKV& known : info->getAllProcessorDescriptions()) {
    const int number = NumberOf(known.Key);
    if (number <= wanted) newest = std::max(newest, number);
  }
  if (newest == 0) {
    return InvalidArgument() << "LLVM " << LLVM_VERSION_STRING << " generates no code for the GPU "
                             << Quoted(architecture);
  }
  return "sm_" + std::to_string(newest);
}

absl::StatusOr<std::unique_ptr<GridTarget>> CreatePtxTarget(const std::string& architecture) {
  ASSIGN_OR_RETURN(const llvm::Target* const target, FindTarget());
  ASSIGN_OR_RETURN(const std::string known, PtxArchitectureFor(architecture));
  llvm::TargetOptions options;
  // A multiplication and an addition in the body are rounded separately on all machines.
  options.AllowFPOpFusion = llvm::FPOpFusion::Strict;
  std::unique_ptr<llvm::TargetMachine> machine(
      target->createTargetMachine(kTriple, known, /*Features=*/"", options, llvm::Reloc::PIC_));
  return std::make_unique<PtxTarget>(std::make_unique<ModuleCompiler>(std::move(machine)));
}

absl::StatusOr<std::string> EmptyPtxFor(const std::string& architecture) {
  ASSIGN_OR_RETURN(const std::unique_ptr<GridTarget> target, CreatePtxTarget(architecture));
  llvm::LLVMContext context;
  llvm::Module module("empty", context);
  target->Prepare(module);
  return target->Assemble(module);
}

}  // namespace lockstep
