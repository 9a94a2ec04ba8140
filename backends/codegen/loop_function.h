// Writes one of the two functions of a loop for a CPU (see emit_loop.h). The object is the state of the nest during
// writing, from the unit down to the vector. Used only by emit_loop.cc.

#pragma once

#include <functional>
#include <string>
#include <vector>

#include "backends/codegen/loop_elements.h"
#include "backends/loops/loop_plan.h"

namespace lockstep {

class LoopFunction final : private LoopElements {
 public:
  // Opens the function. Its arguments are buffers, scratch and, if `has_range`, begin and end.
  LoopFunction(const Graph& body, const LoopPlan& plan, const EmitTarget& target, const std::string& name,
               bool has_range, llvm::Module& module);

  void EmitRun();
  void EmitFinish();

 private:
  llvm::Value* ReducedScalar(size_t reduction) override;
  llvm::Value* ReducedVector(size_t reduction, llvm::Value* i) override;

  // Emits body(i, null) for every whole vector from low to high, then body(i, mask) for the rest.
  void ForVectors(llvm::Value* low, llvm::Value* high, const std::function<void(llvm::Value*, llvm::Value*)>& body);
  llvm::Value* Mask(llvm::Value* count);
  // Sets the indices, ranges and chunk of a unit. `chunked`: chunks are separate units.
  void OpenUnit(llvm::Value* unit, bool chunked);
  void EmitPhase(int phase);
  void EmitReducedLoops(size_t dim, int phase, const std::vector<bool>& needed);
  void EmitVector(int phase, const std::vector<bool>& needed, llvm::Value* i, llvm::Value* mask);
  // Emits the outputs that are computed after the reductions.
  void EmitEpilogue();
  void SaveChunk();
  void CombineChunks();
  void Return();
  // The accumulator of `reduction` for the vector at index i of the last dimension.
  llvm::Value* AccumulatorPointer(size_t reduction, llvm::Value* i);
  // The address of the result of chunk `chunk` of `reduction` at the current kept indices.
  llvm::Value* ScratchPointer(size_t reduction, llvm::Value* chunk);

  const LoopPlan& plan_;
  Values accumulators_;         // for each reduction: a vector, or one for each vector of a block
  Values reduced_;              // for each reduction, the scalar result, if the last dimension is reduced
  llvm::Value* low_ = nullptr;  // the range of the last dimension in this unit
  llvm::Value* high_ = nullptr;
  llvm::Value* chunk_ = nullptr;
  llvm::Value* chunk_low_ = nullptr;  // the range of chunk_dim in this unit
  llvm::Value* chunk_high_ = nullptr;
  int reduced_known_ = 0;  // the number of phases whose reductions are done
};

}  // namespace lockstep
