// The elements of a loop nest in LLVM's terms: their addresses, and how they are loaded, computed and stored at the
// current indices. Each kind of nest derives from this class: loop_function.h for CPUs, grid_function.h for GPUs.

#pragma once

#include <functional>
#include <vector>

#include "backends/codegen/emit_element.h"
#include "backends/codegen/emit_loop.h"
#include "backends/loops/loop_nest.h"

namespace lockstep {

class LoopElements {
 public:
  LoopElements(const LoopElements&) = delete;
  LoopElements& operator=(const LoopElements&) = delete;

 protected:
  using Values = std::vector<llvm::Value*>;

  // The way in which vectors are read and written.
  struct Access {
    unsigned lanes = 1;       // of the nest's vectors; 1: they are scalars
    bool has_gather = false;  // one instruction can read lanes at arbitrary addresses
    bool is_aligned = false;  // every vector begins at an index of the last dimension that is a multiple of `lanes`
  };

  // Requires a `function` without blocks; opens its entry block.
  LoopElements(const Graph& body, const LoopNest& nest, const Access& access, const EmitTarget& target,
               llvm::Function* function);
  virtual ~LoopElements() = default;

  // The result of a reduction at the current kept indices, in its sum_dtype(); null if it is not yet known.
  virtual llvm::Value* ReducedScalar(size_t reduction) = 0;
  // The same if the last dimension is kept, for the vector at its index i.
  virtual llvm::Value* ReducedVector(size_t reduction, llvm::Value* i) = 0;

  // Emits for (i = low; i < high; i += step) body(i).
  void For(llvm::Value* low, llvm::Value* high, int64_t step, const std::function<void(llvm::Value*)>& body);

  // Computes as scalars those elements of `needed` that are the same for all lanes and whose indices are known.
  void EmitUniforms(const std::vector<bool>& needed);
  llvm::Value* Uniform(int element);
  // Computes the other elements of `needed` as vectors.
  Values EmitVectors(const std::vector<bool>& needed, llvm::Value* i, llvm::Value* mask);
  llvm::Value* VectorOf(int element, const Values& vectors);

  llvm::Value* Position(
      const Affine& at);  // with the indices as they are now, the last dimension's included if it is set
  llvm::Value* Load(const Element& element, llvm::Value* mask);  // a scalar if all lanes would be the same
  void StoreVector(const Output& output, llvm::Value* vector, llvm::Value* mask);
  void StoreScalar(const Output& output, llvm::Value* scalar);
  llvm::Value* ElementPointer(llvm::Value* base, DType dtype, llvm::Value* position);

  llvm::Value* Splat(llvm::Value* scalar) {
    return access_.lanes == 1 ? scalar : b_.CreateVectorSplat(access_.lanes, scalar);
  }
  llvm::Type* VectorType(llvm::Type* type) {
    return access_.lanes == 1 ? type : llvm::FixedVectorType::get(type, access_.lanes);
  }
  llvm::Value* Int(int64_t value) { return b_.getInt64(static_cast<uint64_t>(value)); }
  llvm::Type* SumType(const Reduction& reduction) { return emit_.RegisterType(reduction.sum_dtype()); }
  // The element that is the result of the reduction.
  const Element& ReducedElement(size_t reduction) const;

  const Graph& body_;
  llvm::Module& module_;
  llvm::IRBuilder<> b_;
  llvm::Function* function_;
  llvm::Value* error_;  // the error code that the function returns or reports
  ElementEmitter emit_;
  Values pointers_;  // of inputs, then results
  Values index_;     // of each loop dimension, null while it is not known
  Values scalars_;   // for each element, null if not computed

 private:
  llvm::Value* ConstantTable(const Element& element);
  // Returns the quotient of a vector and a number that is the same for all lanes, if the target has code for that, or
  // null.
  llvm::Value* QuotientByOne(const Element& element, const Values& vectors);
  llvm::Value* LoadApart(llvm::Type* type, llvm::Value* pointer, const Element& element, llvm::Value* mask);
  // The alignment of a vector in a tensor of this many elements. If the tensor is not a whole number of vectors, it may
  // begin at any element: slices of a loop are adjacent in memory.
  llvm::Align AlignmentOf(const Affine& at, DType dtype, int64_t elements) const;
  int32_t ErrorCode(const Node& node) const;  // the error code of this node of the body

  const LoopNest& nest_;
  const Access access_;
};

}  // namespace lockstep
