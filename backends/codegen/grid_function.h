// Writes the kernels of a loop for a GPU (backends/loops/grid_plan.h): one that runs a block of threads, and one that
// combines the chunks of reductions. They are written for one thread; where threads meet, and how they know who they
// are, is the machine's to say, so that the same code can be made for PTX and, in tests, for the host.
//
//   void kernel(inputs..., results..., void* scratch, uint64_t* error, uint32_t id)
//
// Pointers are to dense row-major values, aligned to the largest power of two up to 16 bytes that divides their size,
// as slices of a loop are, which lie one after the other. A thread whose op refuses an element writes id << 32 | code
// (backends/loops/loop_info.h) to *error unless something is there.

#pragma once

#include <memory>
#include <string>
#include <vector>

#include "backends/codegen/loop_elements.h"
#include "backends/loops/grid_plan.h"

namespace lockstep {

// What a thread asks its machine. Called while a kernel is written: each returns the values of the instructions that it
// adds.
class ThreadEmitter {
 public:
  virtual ~ThreadEmitter() = default;
  virtual unsigned address_space() const = 0;                        // of the kernel's arguments
  virtual llvm::Value* Thread(llvm::IRBuilderBase& b) = 0;           // i32, below the threads of a block
  virtual llvm::Value* Block(llvm::IRBuilderBase& b, int axis) = 0;  // i32; axis 0 or 1 of the grid
  virtual void Barrier(llvm::IRBuilderBase& b) = 0;                  // of the block
  // The i32 `value` of the thread of the warp whose number differs by the bits of `mask`, below 32.
  virtual llvm::Value* ShuffleXor(llvm::IRBuilderBase& b, llvm::Value* value, int mask) = 0;
  // Memory of the block, aligned to 16 bytes; called once a kernel.
  virtual llvm::Value* Shared(llvm::IRBuilderBase& b, int64_t bytes) = 0;
  // Says of the function that it is a kernel of blocks of so many threads.
  virtual void DeclareKernel(llvm::Function& function, int64_t threads) = 0;
};

class GridFunction final : private LoopElements {
 public:
  enum class Part { kRun, kFinish };
  // `machine` outlives the object.
  GridFunction(const Graph& body, const GridPlan& plan, Part part, ThreadEmitter& machine, const std::string& name,
               llvm::Module& module);

  void Emit();

 private:
  llvm::Value* ReducedScalar(size_t reduction) override;
  llvm::Value* ReducedVector(size_t reduction, llvm::Value* i) override;

  // if (condition) body(), after which nothing that body computed is known.
  void If(llvm::Value* condition, const std::function<void()>& body);
  // Who this thread is: group, split and chunk; sets the indices of the kept dimensions.
  void OpenThread();
  void EmitRun();
  void EmitFinish();
  void EmitPhase(int phase);
  void EmitReducedVectors(int phase, const std::vector<bool>& needed);
  void EmitVector(int phase, const std::vector<bool>& needed, llvm::Value* i);
  // What all threads of a group have accumulated, combined: each of them gets it.
  llvm::Value* CombineGroup(size_t reduction);
  llvm::Value* CombineNeighbours(size_t reduction, llvm::Value* value, int64_t count);  // of a warp
  // Through the memory of the block: each thread for which `writes` holds leaves its value at place `to`, and all
  // combine those at from, from + step, ...
  llvm::Value* CombineShared(size_t reduction, llvm::Value* value, llvm::Value* writes, llvm::Value* to,
                             llvm::Value* from, int64_t step, int64_t count);
  // Whether this thread is the one of its group that writes what all of it have reduced.
  llvm::Value* IsWriter();
  // The outputs that come after the reductions.
  void EmitEpilogue();
  void SaveChunk();
  void ReportError();
  // Takes a row-major number apart into the indices of the kept dimensions, or of the reduced ones. `step` of them
  // are neighbours along the last dimension.
  void SetIndices(llvm::Value* number, bool reduced, int64_t step);
  llvm::Value* Exchange(llvm::Value* value, int mask);  // a ShuffleXor of a value of any type
  llvm::Value* ScratchPointer(size_t reduction, llvm::Value* chunk);
  llvm::Type* AccumulatorType(size_t reduction);
  // A truth lies in memory as a byte.
  llvm::Value* ToMemory(llvm::Value* value);
  llvm::Value* FromMemory(llvm::Value* stored, llvm::Type* type);
  llvm::Type* MemoryType(llvm::Type* type);
  llvm::Value* Number(int64_t value) { return llvm::ConstantInt::get(number_type_, static_cast<uint64_t>(value)); }
  llvm::Value* ToNumber(llvm::Value* i32) { return b_.CreateZExtOrTrunc(i32, number_type_); }
  int64_t SharedBytes() const;
  int64_t splits() const { return part_ == Part::kRun ? plan_.splits : GridPlan::kWarp; }
  bool keeps_last() const { return !plan_.vector_reduced(); }

  const GridPlan& plan_;
  const Part part_;
  ThreadEmitter& machine_;
  llvm::Type* const number_type_;  // of positions' numbers: 32 bits where they fit
  Values accumulators_;            // for each reduction, the thread's: a vector, or a scalar in a kFinish
  Values reduced_;                 // for each reduction, the group's, once it is known
  llvm::Value* thread_ = nullptr;  // all of number_type_
  llvm::Value* group_ = nullptr;
  llvm::Value* split_ = nullptr;
  llvm::Value* kept_ = nullptr;  // the kept vector's number
  llvm::Value* chunk_ = nullptr;
  llvm::Value* active_ = nullptr;  // whether the group has something to do
  llvm::Value* shared_ = nullptr;  // once a reduction has used it
};

}  // namespace lockstep
