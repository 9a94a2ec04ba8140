// Writes one of the two functions of a loop (see emit_loop.h): the state of the nest while it is being written, from
// the unit down to the vector. Used by emit_loop.cc alone.

#pragma once

#include <functional>
#include <optional>
#include <span>
#include <vector>

#include "backends/codegen/emit_loop.h"

namespace lockstep {

class LoopFunction {
 public:
  // Opens the function, whose arguments after buffers and scratch are begin and end if `has_range`.
  LoopFunction(const Graph& body, const LoopPlan& plan, const EmitTarget& target, const std::string& name,
               bool has_range, llvm::Module& module);

  void EmitRun();
  void EmitFinish();

 private:
  using Values = std::vector<llvm::Value*>;

  // --- loop_function.cc: the nest ------------------------------------------------------------------------------------
  // for (i = low; i < high; i += step) body(i)
  void For(llvm::Value* low, llvm::Value* high, int64_t step, const std::function<void(llvm::Value*)>& body);
  // body(i, null) for every whole vector from low to high, then body(i, mask) for what is left.
  void ForVectors(llvm::Value* low, llvm::Value* high, const std::function<void(llvm::Value*, llvm::Value*)>& body);
  // Sets the indices, ranges and chunk of a unit; `chunked` says whether units are chunks too.
  void OpenUnit(llvm::Value* unit, bool chunked);
  void EmitPhase(int phase);
  void EmitReducedLoops(size_t dim, int phase, const std::vector<bool>& needed);
  void EmitVector(int phase, const std::vector<bool>& needed, llvm::Value* i, llvm::Value* mask);
  // The outputs that come after the reductions.
  void EmitEpilogue();
  void SaveChunk();
  void CombineChunks();
  void Return();

  // --- loop_access.cc: elements, memory, accumulators ----------------------------------------------------------------
  // Computes as scalars those of `needed` that are the same for all lanes and whose indices are known.
  void EmitUniforms(const std::vector<bool>& needed);
  llvm::Value* Uniform(int element);
  // Computes the others of `needed` as vectors.
  Values EmitVectors(const std::vector<bool>& needed, llvm::Value* i, llvm::Value* mask);
  llvm::Value* VectorOf(int element, const Values& vectors);
  llvm::Value* Position(
      const Affine& at);  // with the indices as they are now, the last dimension's included if it is set
  llvm::Value* Load(const Element& element, llvm::Value* mask);  // a scalar if `lanes` would all be the same
  void StoreVector(const Output& output, llvm::Value* vector, llvm::Value* mask);
  llvm::Value* ElementPointer(llvm::Value* base, DType dtype, llvm::Value* position);
  llvm::Value* ConstantTable(const Element& element);
  llvm::Value* Splat(llvm::Value* scalar) { return b_.CreateVectorSplat(plan_.lanes, scalar); }
  llvm::Value* Mask(llvm::Value* count);
  llvm::Type* VectorType(llvm::Type* type) { return llvm::FixedVectorType::get(type, plan_.lanes); }
  llvm::Value* Int(int64_t value) { return b_.getInt64(static_cast<uint64_t>(value)); }
  // The accumulator of `reduction` for the vector at index i of the last dimension.
  llvm::Value* AccumulatorPointer(size_t reduction, llvm::Value* i);
  // Where chunk `chunk` of `reduction` keeps its result at the current kept indices.
  llvm::Value* ScratchPointer(size_t reduction, llvm::Value* chunk);
  // What a reduction accumulates in: sums and products of f32 in f64, so that their error does not grow with the number
  // of elements, as PyTorch's does not.
  static DType SumDType(const Reduction& reduction) {
    const bool adds = reduction.kind != ReduceKind::kMax && reduction.kind != ReduceKind::kMin;
    return adds && reduction.dtype == DType::kF32 ? DType::kF64 : reduction.dtype;
  }
  llvm::Type* SumType(const Reduction& reduction) { return emit_.RegisterType(SumDType(reduction)); }
  const Element& ReducedElement(size_t reduction) const;
  int32_t ErrorCode(const Node& node) const;  // what the loop returns if this node of the body divides by zero

  const Graph& body_;
  const LoopPlan& plan_;
  llvm::Module& module_;
  llvm::IRBuilder<> b_;
  llvm::Function* function_;
  llvm::Value* error_;
  ElementEmitter emit_;
  Values pointers_;             // of inputs, then results
  Values accumulators_;         // for each reduction: a vector, or one for each vector of a block
  Values index_;                // of each loop dimension, null while it is not known
  Values scalars_;              // for each element, null if not computed
  Values reduced_;              // for each reduction, the scalar result, if the last dimension is reduced
  llvm::Value* low_ = nullptr;  // the range of the last dimension in this unit
  llvm::Value* high_ = nullptr;
  llvm::Value* chunk_ = nullptr;
  llvm::Value* chunk_low_ = nullptr;  // the range of chunk_dim in this unit
  llvm::Value* chunk_high_ = nullptr;
  int reduced_known_ = 0;  // phases whose reductions are done
};

}  // namespace lockstep
