// Emits code for one element, or one vector of elements, of each elementwise op. This part of the generator is the same
// for all targets. emit_loop.cc calls it with values of scalar or vector types; results have as many lanes as operands.
//
// In registers, f16 and bf16 are f32, and bool is i1. They are narrowed by stores and by `convert`. Integers wrap
// around.

#pragma once

#include <span>

#include "backends/codegen/emit_math.h"
#include "core/comparison.h"
#include "core/graph.h"
#include "core/op_def.h"
#include "core/placement.h"

namespace lockstep {

class ElementEmitter {
 public:
  // `error` points to an i32. If the op refuses an element (OpDef::ChecksData), the op's error code is written there,
  // unless it already holds an error.
  ElementEmitter(llvm::IRBuilderBase& builder, const math::TargetInstructions& target, llvm::Value* error)
      : b_(builder), target_(target), math_(builder, target), error_(error) {}

  llvm::IRBuilderBase& b() { return b_; }
  math::MathEmitter& math() { return math_; }

  // Sets the active lanes: errors in other lanes are not reported. Null: all lanes are active.
  void set_active(llvm::Value* mask) { active_ = mask; }

  llvm::Type* StoredType(DType dtype);
  llvm::Type* RegisterType(DType dtype);
  llvm::Value* FromStored(DType dtype, llvm::Value* stored);
  llvm::Value* ToStored(DType dtype, llvm::Value* value);

  // Returns true if EmitOp has code for the op.
  static bool Supports(const OpDef& op);
  // Returns true if EmitOp's code for the node calls functions of libm. Only some ops of f64 do.
  static bool CallsLibm(const Node& node);
  // Requires Supports(node.op()). The arguments are register values; `error_code` must not be kLoopOk.
  llvm::Value* EmitOp(const Node& node, std::span<llvm::Value* const> arguments, int32_t error_code);
  // Returns true if quotients by this number are better emitted by math().DivideByOne than as divisions.
  bool DividesByOne(llvm::Value* divisor) const;
  llvm::Value* Convert(llvm::Value* x, DType from, DType to);
  llvm::Value* Bitcast(llvm::Value* x, DType from, DType to);

  llvm::Value* Identity(ReduceKind kind, DType dtype, llvm::Type* type);  // of a register type, or a vector of it
  llvm::Value* Combine(ReduceKind kind, DType dtype, llvm::Value* x, llvm::Value* y);
  // Combines all lanes of a vector into one value, halving the vector in each step. `combine` emits the combination of
  // two vectors.
  using CombineFunction = std::function<llvm::Value*(llvm::Value*, llvm::Value*)>;
  llvm::Value* CombineLanes(llvm::Value* vector, const CombineFunction& combine);

  // Compute what the ops of the same names compute. Compare is in emit_element.cc, the others in emit_arithmetic.cc.
  llvm::Value* Max(DType dtype, llvm::Value* x, llvm::Value* y);
  llvm::Value* Min(DType dtype, llvm::Value* x, llvm::Value* y);
  llvm::Value* Divide(DType dtype, llvm::Value* x, llvm::Value* y);
  llvm::Value* Fmod(DType dtype, llvm::Value* x, llvm::Value* y);
  llvm::Value* Remainder(DType dtype, llvm::Value* x, llvm::Value* y);
  llvm::Value* ShiftLeft(llvm::Value* x, llvm::Value* y);
  llvm::Value* ShiftRight(DType dtype, llvm::Value* x, llvm::Value* y);
  llvm::Value* Power(DType dtype, llvm::Value* x, llvm::Value* y);
  llvm::Value* Within(DType dtype, llvm::Value* x, int64_t low, int64_t high);
  llvm::Value* Compare(DType dtype, Comparison comparison, llvm::Value* x, llvm::Value* y);
  // Computes what the op random_bits computes; in emit_random.cc.
  llvm::Value* RandomBits(llvm::Value* seed, llvm::Value* step, llvm::Value* index, int64_t stream, int64_t word);
  // Calls the libm function `name` of f64 for every lane.
  llvm::Value* CallForEachLane(const char* name, std::span<llvm::Value* const> arguments);
  llvm::Value* Constant(llvm::Value* like, double value);  // float or integer

 private:
  void ReportIfAny(llvm::Value* condition);

  llvm::IRBuilderBase& b_;
  const math::TargetInstructions target_;
  math::MathEmitter math_;
  llvm::Value* error_;
  llvm::Value* active_ = nullptr;
  int32_t error_code_ = 0;  // of the op that is being emitted
};

}  // namespace lockstep
