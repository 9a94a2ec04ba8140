// Writes the kernels of a loop for a GPU (backends/loops/grid_plan.h): one that runs a block of threads, and one that
// combines the chunks of reductions. They are written for one thread. Barriers and thread indices come from
// ThreadEmitter, so that the same code can be generated for PTX and, in tests, for the host.
//
//   void kernel(inputs..., results..., void* scratch, uint64_t* error, uint32_t id)
//
// Pointers are to dense row-major values, aligned to the largest power of two up to 16 bytes that divides their size.
// Slices of a loop, which are adjacent in memory, are aligned in this way. A thread whose op refuses an element writes
// id << 32 | code (backends/loops/loop_info.h) to *error, unless *error is already set.

#pragma once

#include <memory>
#include <string>
#include <vector>

#include "backends/codegen/float_pair.h"
#include "backends/codegen/loop_elements.h"
#include "backends/loops/grid_plan.h"

namespace lockstep {

// The machine-dependent operations of a thread. The functions are called while a kernel is written; each adds
// instructions and returns their values.
class ThreadEmitter {
 public:
  virtual ~ThreadEmitter() = default;
  virtual math::TargetInstructions instructions() const = 0;
  virtual unsigned address_space() const = 0;                        // address space of the kernel's arguments
  virtual llvm::Value* Thread(llvm::IRBuilderBase& b) = 0;           // i32, below the number of threads of a block
  virtual llvm::Value* Block(llvm::IRBuilderBase& b, int axis) = 0;  // i32; axis 0 or 1 of the grid
  virtual void Barrier(llvm::IRBuilderBase& b) = 0;                  // for all threads of the block
  // The i32 `value` of the thread in the warp whose number differs by the bits of `mask`, which is below 32.
  virtual llvm::Value* ShuffleXor(llvm::IRBuilderBase& b, llvm::Value* value, int mask) = 0;
  // Memory of the block, aligned to 16 bytes. Called at most once in a kernel.
  virtual llvm::Value* Shared(llvm::IRBuilderBase& b, int64_t bytes) = 0;
  // Marks the function as a kernel that is launched in blocks of this many threads.
  virtual void DeclareKernel(llvm::Function& function, int64_t threads) = 0;
};

class GridFunction final : private LoopElements {
 public:
  enum class Part { kRun, kFinish };
  // `machine` must outlive the object.
  GridFunction(const Graph& body, const GridPlan& plan, Part part, ThreadEmitter& machine, const std::string& name,
               llvm::Module& module);

  void Emit();

 private:
  llvm::Value* ReducedScalar(size_t reduction) override;
  llvm::Value* ReducedVector(size_t reduction, llvm::Value* i) override;

  // Emits if (condition) body(). Values computed in body are not known afterwards.
  void If(llvm::Value* condition, const std::function<void()>& body);
  // Computes the thread's group, split and chunk, and sets the indices of the kept dimensions.
  void OpenThread();
  void EmitRun();
  void EmitFinish();
  void EmitPhase(int phase);
  void EmitReducedVectors(int phase, const std::vector<bool>& needed);
  void EmitVector(int phase, const std::vector<bool>& needed, llvm::Value* i);
  // Combines the accumulators of all threads of a group and returns the result to each of them.
  llvm::Value* CombineGroup(size_t reduction);
  llvm::Value* CombineNeighbours(size_t reduction, llvm::Value* value, int64_t count);  // within a warp
  // Combines through the memory of the block: each thread for which `writes` is true stores its value at index `to`,
  // and all threads combine the values at from, from + step, ...
  llvm::Value* CombineShared(size_t reduction, llvm::Value* value, llvm::Value* writes, llvm::Value* to,
                             llvm::Value* from, int64_t step, int64_t count);
  // True in the one thread of each group that writes the group's reduced values.
  llvm::Value* IsWriter();
  // Emits the outputs that are computed after the reductions.
  void EmitEpilogue();
  void SaveChunk();
  void ReportError();
  // Splits a row-major number into the indices of the kept or the reduced dimensions. `step` consecutive numbers are
  // neighbours along the last dimension.
  void SetIndices(llvm::Value* number, bool reduced, int64_t step);
  llvm::Value* Exchange(llvm::Value* value, int mask);  // ShuffleXor for a value of any type
  llvm::Value* ScratchPointer(size_t reduction, llvm::Value* chunk);
  llvm::Type* AccumulatorType(size_t reduction);
  // The type of a combined value: the reduction's sum_dtype(), or a packed pair (float_pair.h).
  llvm::Type* CombinedType(size_t reduction);
  llvm::Value* Combine(size_t reduction, llvm::Value* x, llvm::Value* y);
  bool IsInPairs(size_t reduction) const { return plan_.IsInPairs(plan_.reductions[reduction]); }
  // Adds the operand to the thread's accumulator in kRun.
  void Accumulate(size_t reduction, llvm::Value* operand);
  // A bool is one byte in memory.
  llvm::Value* ToMemory(llvm::Value* value);
  llvm::Value* FromMemory(llvm::Value* stored, llvm::Type* type);
  llvm::Type* MemoryType(llvm::Type* type);
  llvm::Value* Number(int64_t value) { return llvm::ConstantInt::get(number_type_, static_cast<uint64_t>(value)); }
  llvm::Value* ToNumber(llvm::Value* i32) { return b_.CreateZExtOrTrunc(i32, number_type_); }
  int64_t splits() const { return part_ == Part::kRun ? plan_.splits : plan_.finish_splits(); }
  bool keeps_last() const { return !plan_.vector_reduced(); }

  const GridPlan& plan_;
  const Part part_;
  ThreadEmitter& machine_;
  llvm::Type* const number_type_;  // of position numbers: 32 bits if they fit
  Values accumulators_;            // for each reduction, the thread's: a vector, or a scalar in kFinish
  std::vector<FloatPair> pairs_;   // the same of sums in pairs in kRun, until they are packed into accumulators_
  Values reduced_;                 // for each reduction, the group's, once it has been computed
  llvm::Value* thread_ = nullptr;  // this and the following are of number_type_
  llvm::Value* group_ = nullptr;
  llvm::Value* split_ = nullptr;
  llvm::Value* kept_ = nullptr;  // the number of the kept vector
  llvm::Value* chunk_ = nullptr;
  llvm::Value* active_ = nullptr;  // true if the group has work to do
  llvm::Value* shared_ = nullptr;  // set once a reduction has used it
};

}  // namespace lockstep
