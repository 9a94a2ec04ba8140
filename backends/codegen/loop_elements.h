// The elements of a nest of loops in LLVM's terms: where each lies, how it is loaded, computed and stored, at the
// indices where the writer of the nest stands. Each kind of nest derives from it: loop_function.h for CPUs,
// grid_function.h for GPUs.

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

  // How vectors are read and written.
  struct Access {
    unsigned lanes = 1;       // of the nest's vectors; 1: they are scalars
    bool has_gather = false;  // one instruction reads lanes that are apart
    bool is_aligned = false;  // every index of the last dimension at which a vector begins is a multiple of `lanes`
  };

  // `function` has no block yet: this opens its entry.
  LoopElements(const Graph& body, const LoopNest& nest, const Access& access, const EmitTarget& target,
               llvm::Function* function);
  virtual ~LoopElements() = default;

  // What a reduction came to at the current kept indices, in its sum_dtype(); null if that is not known yet.
  virtual llvm::Value* ReducedScalar(size_t reduction) = 0;
  // The same where the last dimension is kept, for the vector at its index i.
  virtual llvm::Value* ReducedVector(size_t reduction, llvm::Value* i) = 0;

  // for (i = low; i < high; i += step) body(i)
  void For(llvm::Value* low, llvm::Value* high, int64_t step, const std::function<void(llvm::Value*)>& body);

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
  // The element that is what the reduction came to.
  const Element& ReducedElement(size_t reduction) const;

  const Graph& body_;
  llvm::Module& module_;
  llvm::IRBuilder<> b_;
  llvm::Function* function_;
  llvm::Value* error_;  // what the function returns, or reports
  ElementEmitter emit_;
  Values pointers_;  // of inputs, then results
  Values index_;     // of each loop dimension, null while it is not known
  Values scalars_;   // for each element, null if not computed

 private:
  llvm::Value* ConstantTable(const Element& element);
  llvm::Value* LoadApart(llvm::Type* type, llvm::Value* pointer, const Element& element, llvm::Value* mask);
  // Of a vector in a tensor of so many elements. One that is no whole number of vectors may begin anywhere: slices of a
  // loop lie one after the other.
  llvm::Align AlignmentOf(const Affine& at, DType dtype, int64_t elements) const;
  int32_t ErrorCode(const Node& node) const;  // what the loop returns if this node of the body divides by zero

  const LoopNest& nest_;
  const Access access_;
};

}  // namespace lockstep
