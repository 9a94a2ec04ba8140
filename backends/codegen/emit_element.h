// Code for one element, or one vector of elements, of each elementwise op: the part of the generator that is the same
// for every target. emit_loop.cc calls it with values of scalar or vector types; what comes out has as many lanes as
// what goes in.
//
// In registers f16 and bf16 are f32 and bool is i1; they are narrowed when stored, and by `convert`. Integers wrap
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
  // `error` points to an i32 that becomes the error code of the op, unless it is one already, when the op refuses an
  // element (OpDef::Refuses).
  ElementEmitter(llvm::IRBuilderBase& builder, bool has_fma, llvm::Value* error)
      : b_(builder), math_(builder, has_fma), error_(error) {}

  llvm::IRBuilderBase& b() { return b_; }
  math::MathEmitter& math() { return math_; }

  // The lanes that count: what happens in the others is not reported. Null: all of them.
  void set_active(llvm::Value* mask) { active_ = mask; }

  llvm::Type* StoredType(DType dtype);
  llvm::Type* RegisterType(DType dtype);
  llvm::Value* FromStored(DType dtype, llvm::Value* stored);
  llvm::Value* ToStored(DType dtype, llvm::Value* value);

  // Whether EmitOp knows the op.
  static bool Supports(const OpDef& op);
  // Whether EmitOp's code for the node calls functions of libm: that of some ops of f64 does, and no other.
  static bool CallsLibm(const Node& node);
  // Requires Supports(node.op()). The arguments are register values; `error_code` is not kLoopOk.
  llvm::Value* EmitOp(const Node& node, std::span<llvm::Value* const> arguments, int32_t error_code);
  llvm::Value* Convert(llvm::Value* x, DType from, DType to);
  llvm::Value* Bitcast(llvm::Value* x, DType from, DType to);

  llvm::Value* Identity(ReduceKind kind, DType dtype, llvm::Type* type);  // of a register type, or a vector of it
  llvm::Value* Combine(ReduceKind kind, DType dtype, llvm::Value* x, llvm::Value* y);
  // All lanes of a vector into one, by halves.
  llvm::Value* CombineLanes(ReduceKind kind, DType dtype, llvm::Value* vector);

  // As the ops of these names; in emit_arithmetic.cc, but for the comparison.
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
  // As the op random_bits; in emit_random.cc.
  llvm::Value* RandomBits(llvm::Value* seed, llvm::Value* step, llvm::Value* index, int64_t stream, int64_t word);
  // The function `name` of libm, of f64, for every lane.
  llvm::Value* CallForEachLane(const char* name, std::span<llvm::Value* const> arguments);
  llvm::Value* Constant(llvm::Value* like, double value);  // float or integer

 private:
  void ReportIfAny(llvm::Value* condition);

  llvm::IRBuilderBase& b_;
  math::MathEmitter math_;
  llvm::Value* error_;
  llvm::Value* active_ = nullptr;
  int32_t error_code_ = 0;  // of the op that is being emitted
};

}  // namespace lockstep
