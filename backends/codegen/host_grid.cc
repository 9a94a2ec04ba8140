#include "backends/codegen/host_grid.h"

#include <ucontext.h>

#include <algorithm>
#include <array>
#include <cstddef>
#include <cstring>
#include <functional>
#include <map>
#include <mutex>
#include <numeric>
#include <random>
#include <vector>

#include "backends/codegen/module_compiler.h"
#include "backends/loops/loop_info.h"
#include "core/check.h"
#include "llvm/ExecutionEngine/Orc/LLJIT.h"

namespace lockstep::loop_test {
namespace {

// --- The functions that a thread calls -------------------------------------------------------------------------------

constexpr char kLauncher[] = "launch_", kEntry[] = "enter_";
// Kinds of meetings of threads. Other values are masks of shuffles.
constexpr int kBarrier = 0, kProduct = 32, kMatrices = 33;
constexpr size_t kWarp = 32;

// The block that is running, and its current thread.
struct Block {
  int64_t threads = 0;
  std::array<uint32_t, 2> block = {};
  uint32_t thread = 0;
  bool together = false;  // threads of the block take turns
  std::vector<int> meeting;
  using Offer = std::array<uint32_t, 6>;  // a value for a shuffle, or the words of A and B for a product
  std::vector<Offer> offered, before;     // by thread: at the current meeting, and at the previous one
  // A copy that a thread has started. Until the thread waits for it, `to` has bytes that are NaN in all float types.
  struct Copy {
    void* to;
    const void* from;
    size_t bytes;  // the rest is zeros
  };
  static constexpr size_t kCopied = 16;
  std::vector<std::vector<Copy>> copies;  // by thread
  std::vector<std::byte> shared;
  ucontext_t scheduler = {};
  std::vector<ucontext_t> contexts;
  std::vector<bool> done;
  std::string error;
};
thread_local Block* running = nullptr;

void Meet(int where) {
  Block& block = *running;
  const uint32_t self = block.thread;
  if (!block.together) {
    block.error = "a thread that runs alone waits for others";
    return;
  }
  block.meeting[self] = where;
  swapcontext(&block.contexts[self], &block.scheduler);
  block.thread = self;
}

}  // namespace

// Called by emitted code and by the kernels of backends/cuda/kernels/.
extern "C" {
uint32_t grid_thread() { return running->thread; }
uint32_t grid_block(uint32_t axis) { return running->block[axis]; }
void grid_barrier() { Meet(kBarrier); }
uint32_t grid_shuffle(uint32_t value, uint32_t mask) {
  const uint32_t self = running->thread;
  running->offered[self][0] = value;
  Meet(static_cast<int>(mask));
  return running->before[self ^ mask][0];
}
// The product of a warp as backends/cuda/kernels/warp_product.h defines it; `multiply` multiplies two words.
void grid_product(const uint32_t* a, const uint32_t* b, float* c, float (*multiply)(uint32_t, uint32_t)) {
  const uint32_t self = running->thread;
  Block::Offer& own = running->offered[self];
  std::copy_n(a, 4, own.begin());
  std::copy_n(b, 2, own.begin() + 4);
  Meet(kProduct);
  const uint32_t warp = self / 32 * 32, g = self % 32 / 4, t = self % 4;
  for (uint32_t i = 0; i < 4; ++i) {
    const uint32_t lower = i / 2, column = 2 * t + i % 2;  // row g + 8 lower
    double sum = c[i];
    for (uint32_t word = 0; word < 8; ++word) {
      const uint32_t later = word / 4;
      sum += multiply(running->before[warp + 4 * g + word % 4][lower + 2 * later],
                      running->before[warp + 4 * column + word % 4][4 + later]);
    }
    c[i] = static_cast<float>(sum);
  }
}
// The matrices of a warp as warp_product.h defines them.
void grid_matrices(const void* row, uint32_t* words, bool transposed) {
  const uint32_t self = running->thread, warp = self / 32 * 32, g = self % 32 / 4, t = self % 4;
  const auto address = reinterpret_cast<uintptr_t>(row);
  if (address % 16 != 0) running->error = "a row of a matrix does not begin at a multiple of 16 bytes";
  running->offered[self][0] = static_cast<uint32_t>(address);
  running->offered[self][1] = static_cast<uint32_t>(address >> 32);
  Meet(kMatrices);
  for (uint32_t matrix = 0; matrix < 4; ++matrix) {
    const auto row_of = [&](uint32_t number) {
      const Block::Offer& offer = running->before[warp + 8 * matrix + number];
      return reinterpret_cast<const uint16_t*>(uintptr_t{offer[1]} << 32 | offer[0]);
    };
    const uint16_t first = transposed ? row_of(2 * t)[g] : row_of(g)[2 * t],
                   second = transposed ? row_of(2 * t + 1)[g] : row_of(g)[2 * t + 1];
    words[matrix] = first | static_cast<uint32_t>(second) << 16;
  }
}
void grid_copy_later(void* to, const void* from, int64_t bytes) {
  std::memset(to, 0xff, Block::kCopied);
  running->copies[running->thread].push_back({to, from, static_cast<size_t>(bytes)});
}
void grid_await_copies() {
  for (const Block::Copy& copy : running->copies[running->thread]) {
    std::memset(copy.to, 0, Block::kCopied);
    if (copy.bytes > 0) std::memcpy(copy.to, copy.from, copy.bytes);
  }
  running->copies[running->thread].clear();
}
void* grid_shared(int64_t bytes) {
  LOCKSTEP_CHECK(bytes <= GridPlan::kMostShared) << "a GPU has no " << bytes << " bytes for a block";
  running->shared.resize(std::max(running->shared.size(), static_cast<size_t>(bytes) + 64));
  const auto address = reinterpret_cast<uintptr_t>(running->shared.data());
  return reinterpret_cast<void*>((address + 63) / 64 * 64);
}
}  // extern "C"

namespace {

void NoEntry() { LOCKSTEP_CHECK(false) << "a kernel was entered that cannot be launched in this way"; }

llvm::Value* EmitExp2(llvm::IRBuilderBase& b, llvm::Value* x) {
  return b.CreateUnaryIntrinsic(llvm::Intrinsic::exp2, x);
}

class HostThreadEmitter final : public ThreadEmitter {
 public:
  // As on GPUs, except for bf16, which x86 rounds in its own way.
  math::TargetInstructions instructions() const override {
    return {.has_fma = true, .has_maximum = true, .has_division = false, .exp2 = EmitExp2};
  }
  unsigned address_space() const override { return 0; }
  llvm::Value* Thread(llvm::IRBuilderBase& b) override { return Call(b, "grid_thread", b.getInt32Ty(), {}); }
  llvm::Value* Block(llvm::IRBuilderBase& b, int axis) override {
    return Call(b, "grid_block", b.getInt32Ty(), {b.getInt32(static_cast<uint32_t>(axis))});
  }
  void Barrier(llvm::IRBuilderBase& b) override { Call(b, "grid_barrier", b.getVoidTy(), {}); }
  llvm::Value* ShuffleXor(llvm::IRBuilderBase& b, llvm::Value* value, int mask) override {
    return Call(b, "grid_shuffle", b.getInt32Ty(), {value, b.getInt32(static_cast<uint32_t>(mask))});
  }
  llvm::Value* Shared(llvm::IRBuilderBase& b, int64_t bytes) override {
    return Call(b, "grid_shared", b.getPtrTy(), {b.getInt64(static_cast<uint64_t>(bytes))});
  }
  void DeclareKernel(llvm::Function&, int64_t) override {}

 private:
  static llvm::Value* Call(llvm::IRBuilderBase& b, const char* name, llvm::Type* result,
                           llvm::ArrayRef<llvm::Value*> arguments) {
    std::vector<llvm::Type*> types;
    for (llvm::Value* argument : arguments) types.push_back(argument->getType());
    llvm::Module* module = b.GetInsertBlock()->getModule();
    return b.CreateCall(module->getOrInsertFunction(name, llvm::FunctionType::get(result, types, false)), arguments);
  }
};

class HostGridTarget final : public GridTarget {
 public:
  explicit HostGridTarget(std::unique_ptr<ModuleCompiler> compiler) : compiler_(std::move(compiler)) {}
  ThreadEmitter& machine() override { return machine_; }
  void Prepare(llvm::Module& module) override { compiler_->Prepare(module); }
  absl::StatusOr<std::string> Assemble(llvm::Module& module) override {
    std::vector<llvm::Function*> kernels;
    for (llvm::Function& function : module) {
      if (!function.isDeclaration()) kernels.push_back(&function);
    }
    for (llvm::Function* kernel : kernels) AddLauncher(*kernel);
    ASSIGN_OR_RETURN(const std::unique_ptr<llvm::MemoryBuffer> object, compiler_->Compile(module));
    return object->getBuffer().str();
  }

 private:
  // Adds void launch_<kernel>(void** parameters), where each parameter is the address of an argument, as for a driver.
  static void AddLauncher(llvm::Function& kernel) {
    llvm::IRBuilder<> b(kernel.getContext());
    auto* launcher =
        llvm::Function::Create(llvm::FunctionType::get(b.getVoidTy(), {b.getPtrTy()}, false),
                               llvm::Function::ExternalLinkage, kLauncher + kernel.getName().str(), kernel.getParent());
    b.SetInsertPoint(llvm::BasicBlock::Create(kernel.getContext(), "entry", launcher));
    std::vector<llvm::Value*> arguments;
    for (llvm::Argument& argument : kernel.args()) {
      llvm::Value* place = b.CreateConstGEP1_64(b.getPtrTy(), launcher->getArg(0), argument.getArgNo());
      arguments.push_back(b.CreateLoad(argument.getType(), b.CreateLoad(b.getPtrTy(), place)));
    }
    b.CreateCall(&kernel, arguments);
    b.CreateRetVoid();
    AddEntry(kernel, *launcher);
  }

  // Adds void enter_<kernel>(void** parameters, const void* launch).
  static void AddEntry(llvm::Function& kernel, llvm::Function& launcher) {
    llvm::IRBuilder<> b(kernel.getContext());
    llvm::Module* module = kernel.getParent();
    llvm::Type* pointer = b.getPtrTy();
    auto* entry = llvm::Function::Create(llvm::FunctionType::get(b.getVoidTy(), {pointer, pointer}, false),
                                         llvm::Function::ExternalLinkage, kEntry + kernel.getName().str(), module);
    b.SetInsertPoint(llvm::BasicBlock::Create(kernel.getContext(), "entry", entry));
    llvm::FunctionCallee enter = module->getOrInsertFunction("grid_enter", b.getVoidTy(), pointer, b.getInt32Ty(),
                                                             b.getInt64Ty(), pointer, pointer);
    const bool together =
        module->getFunction("grid_barrier") != nullptr || module->getFunction("grid_shuffle") != nullptr;
    b.CreateCall(enter, {&launcher, b.getInt32(together ? 1 : 0), b.getInt64(kernel.arg_size()), entry->getArg(0),
                         entry->getArg(1)});
    b.CreateRetVoid();
  }

  const std::unique_ptr<ModuleCompiler> compiler_;
  HostThreadEmitter machine_;
};

llvm::orc::JITTargetMachineBuilder HostMachine() {
  RegisterTargets();
  llvm::orc::JITTargetMachineBuilder builder = llvm::cantFail(llvm::orc::JITTargetMachineBuilder::detectHost());
  builder.getOptions().AllowFPOpFusion = llvm::FPOpFusion::Strict;
  builder.setRelocationModel(llvm::Reloc::PIC_);
  return builder;
}

std::vector<int64_t> InOrder(int64_t count, Order order) {
  std::vector<int64_t> numbers(static_cast<size_t>(count));
  std::iota(numbers.begin(), numbers.end(), 0);
  if (order == Order::kBackwards) std::reverse(numbers.begin(), numbers.end());
  if (order == Order::kMixed) std::shuffle(numbers.begin(), numbers.end(), std::mt19937(7));
  return numbers;
}

}  // namespace

// --- Blocks ----------------------------------------------------------------------------------------------------------

namespace {

constexpr size_t kStack = size_t{64} << 10;

absl::Status RunTogether(Block& block, const std::vector<int64_t>& order, const std::function<void()>& body) {
  const auto count = static_cast<size_t>(block.threads);
  block.meeting.assign(count, -1);
  block.offered.assign(count, {});
  block.before.assign(count, {});
  block.copies.assign(count, {});
  block.done.assign(count, false);
  block.contexts.assign(count, {});
  static thread_local std::unique_ptr<std::byte[]> stacks;
  static thread_local size_t num_stacks = 0;
  static thread_local const std::function<void()>* thread_body = nullptr;
  if (count > num_stacks) {
    stacks = std::make_unique_for_overwrite<std::byte[]>(count * kStack);
    num_stacks = count;
  }
  thread_body = &body;
  for (size_t i = 0; i < count; ++i) {
    getcontext(&block.contexts[i]);
    block.contexts[i].uc_stack.ss_sp = stacks.get() + i * kStack;
    block.contexts[i].uc_stack.ss_size = kStack;
    block.contexts[i].uc_link = &block.scheduler;
    constexpr auto kThread = [] {
      const uint32_t self = running->thread;
      (*thread_body)();
      if (!running->copies[self].empty()) running->error = "a thread ends before its copies";
      running->done[self] = true;
    };
    makecontext(&block.contexts[i], kThread, 0);
  }
  // The threads of each warp, in the order in which they run.
  std::vector<std::vector<size_t>> warps((count + kWarp - 1) / kWarp);
  for (int64_t thread : order) warps[static_cast<size_t>(thread) / kWarp].push_back(static_cast<size_t>(thread));
  if (order.front() != 0) std::reverse(warps.begin(), warps.end());
  // Each round runs the threads from one barrier to the next, a warp at a time, which has its own shuffles and
  // products.
  while (true) {
    for (const std::vector<size_t>& warp : warps) {
      do {
        for (const size_t thread : warp) {
          block.thread = static_cast<uint32_t>(thread);
          swapcontext(&block.scheduler, &block.contexts[thread]);
        }
        for (const size_t thread : warp) {
          if (block.done[thread] != block.done[warp[0]] || block.meeting[thread] != block.meeting[warp[0]])
            return Internal() << "threads " << warp[0] << " and " << thread << " of a warp meet at different places";
          block.before[thread] = block.offered[thread];
        }
      } while (!block.done[warp[0]] && block.meeting[warp[0]] != kBarrier);
    }
    if (block.done[0]) break;
    for (size_t i = 0; i < count; ++i) {
      if (block.done[i]) return Internal() << "thread " << i << " of a block is done while others wait";
    }
  }
  for (size_t i = 0; i < count; ++i) {
    if (!block.done[i]) return Internal() << "thread " << i << " of a block waits for others that are done";
  }
  return absl::OkStatus();
}

}  // namespace

absl::Status RunBlocks(const HostLaunch& launch, void** parameters, Order order) {
  Block block;
  block.threads = launch.threads;
  block.together = launch.together;
  running = &block;
  const std::vector<int64_t> threads = InOrder(launch.threads, order);
  const std::function<void()> body = [&] { launch.run(parameters); };
  for (int64_t i : InOrder(launch.blocks_x * launch.blocks_y, order)) {
    block.block = {static_cast<uint32_t>(i % launch.blocks_x), static_cast<uint32_t>(i / launch.blocks_x)};
    if (launch.together) {
      RETURN_IF_ERROR(RunTogether(block, threads, body));
      continue;
    }
    for (int64_t thread : threads) {
      block.thread = static_cast<uint32_t>(thread);
      body();
    }
  }
  return block.error.empty() ? absl::OkStatus() : Internal() << block.error;
}

class HostGrid::Impl {
 public:
  explicit Impl(Enter enter)
      : enter_(enter),
        jit_(llvm::cantFail(llvm::orc::LLJITBuilder().setJITTargetMachineBuilder(HostMachine()).create())) {}

  // Returns the address of `symbol` in an image.
  absl::StatusOr<void*> Find(const std::string& symbol, const std::string& image) {
    const std::lock_guard lock(mutex_);
    llvm::orc::JITDylib*& library = libraries_[image];
    if (library == nullptr) {
      ASSIGN_OR_RETURN(library, Add(image));
    }
    auto address = jit_->lookup(*library, symbol);
    if (!address) return ToStatus(address.takeError(), "linking");
    return address->toPtr<void*>();
  }

 private:
  absl::StatusOr<llvm::orc::JITDylib*> Add(const std::string& image) {
    llvm::orc::LLJIT& jit = *jit_;
    llvm::orc::JITDylib& library = llvm::cantFail(jit.createJITDylib("image" + std::to_string(libraries_.size())));
    llvm::orc::SymbolMap symbols;
    const auto add = [&](const char* name, auto* function) {
      symbols[jit.mangleAndIntern(name)] = {llvm::orc::ExecutorAddr::fromPtr(function), llvm::JITSymbolFlags::Callable};
    };
    add("grid_thread", &grid_thread);
    add("grid_block", &grid_block);
    add("grid_barrier", &grid_barrier);
    add("grid_shuffle", &grid_shuffle);
    add("grid_shared", &grid_shared);
    if (enter_ != nullptr) add("grid_enter", enter_);
    else add("grid_enter", &NoEntry);
    RETURN_IF_ERROR(ToStatus(library.define(llvm::orc::absoluteSymbols(symbols)), "defining symbols"));
    library.addGenerator(llvm::cantFail(
        llvm::orc::DynamicLibrarySearchGenerator::GetForCurrentProcess(jit.getDataLayout().getGlobalPrefix())));
    RETURN_IF_ERROR(ToStatus(jit.addObjectFile(library, llvm::MemoryBuffer::getMemBufferCopy(image)), "adding"));
    return &library;
  }

  const Enter enter_;
  std::mutex mutex_;
  std::unique_ptr<llvm::orc::LLJIT> jit_;
  std::map<std::string, llvm::orc::JITDylib*> libraries_;  // by image
};

HostGrid::HostGrid(Enter enter) : impl_(std::make_unique<Impl>(enter)) {}
HostGrid::~HostGrid() = default;

absl::StatusOr<std::unique_ptr<GridTarget>> HostGrid::CreateTarget() {
  ASSIGN_OR_RETURN(auto compiler, ModuleCompiler::Create(HostMachine()));
  return std::make_unique<HostGridTarget>(std::move(compiler));
}

absl::StatusOr<void*> HostGrid::EntryOf(const std::string& kernel, const std::string& image) {
  return impl_->Find(kEntry + kernel, image);
}

absl::StatusOr<int32_t> HostGrid::Run(const CompiledGrid& grid, std::vector<void*> pointers, void* scratch,
                                      Order order) {
  constexpr uint32_t kId = 5;
  uint64_t error = 0;
  uint32_t id = kId;
  pointers.insert(pointers.end(), {scratch, &error});
  std::vector<void*> parameters;
  for (void*& pointer : pointers) parameters.push_back(&pointer);
  parameters.push_back(&id);
  // A kernel without barriers and shuffles does not need a stack for each thread.
  const bool together =
      grid.image->find("grid_barrier") != std::string::npos || grid.image->find("grid_shuffle") != std::string::npos;
  const auto launch = [&](const GridLaunch& one) -> absl::Status {
    ASSIGN_OR_RETURN(void* const run, impl_->Find(kLauncher + one.kernel, *grid.image));
    return RunBlocks({reinterpret_cast<RunThread>(run), together, one.blocks_x, one.blocks_y, one.threads},
                     parameters.data(), order);
  };
  if (grid.run.blocks_x == 0) return kLoopOk;
  RETURN_IF_ERROR(launch(grid.run));
  if (grid.finish) RETURN_IF_ERROR(launch(*grid.finish));
  if (error != 0 && error >> 32 != kId) return Internal() << "the error word is " << error;
  return static_cast<int32_t>(error & 0xffffffff);
}

}  // namespace lockstep::loop_test
