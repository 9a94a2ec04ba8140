// One table of op cases. A row names an op, its operands and its attributes. op_case_test.cc derives from it, without
// further code: the text round trip, inferred against evaluated types, the gradient against central differences, and
// the placement rule against the N-rank interpreter. The tests of backends and speed runs read the same rows.
//
//   Case("matmul", {F32({2, 3}), F32({3, 4})}),
//   Case("log", {F64({5}).In(0.1, 3)}),
//   Case("max_pool", {F32({1, 2, 4, 4})}, {{"window", Ints{2, 2}}}).NoGradient("why it is not compared"),
//   Case("matmul", {F32({2, 3}), F64({3, 4})}).Refused("C1"),  // a negative row: inference names that constraint
//
// Each op needs a row whose gradient is compared (if it has one), a row without elements, and a negative row for each
// constraint. The placement test runs rows on 2 and 3 ranks and splits extents that divide, so use extents of 6.

#pragma once

#include <optional>
#include <ostream>
#include <string>
#include <vector>

#include "core/attributes.h"
#include "core/op_def.h"
#include "core/tensor.h"

namespace lockstep {

using Ints = std::vector<int64_t>;

// One operand: a type, and its elements, either drawn uniformly from [low, high] or given.
struct CaseOperand {
  TensorType type;
  double low = -2, high = 2;
  std::optional<Tensor> value;

  CaseOperand(TensorType operand_type) : type(std::move(operand_type)) {}        // NOLINT: rows read as lists of types
  CaseOperand(Tensor tensor) : type(tensor.type()), value(std::move(tensor)) {}  // NOLINT
  CaseOperand In(double from, double to) && {
    low = from, high = to;
    return std::move(*this);
  }
};

inline CaseOperand Typed(DType dtype, Shape shape) { return CaseOperand(TensorType{dtype, std::move(shape)}); }
inline CaseOperand F32(Shape shape) { return Typed(DType::kF32, std::move(shape)); }
inline CaseOperand F64(Shape shape) { return Typed(DType::kF64, std::move(shape)); }
inline CaseOperand BF16(Shape shape) { return Typed(DType::kBF16, std::move(shape)); }
inline CaseOperand F16(Shape shape) { return Typed(DType::kF16, std::move(shape)); }
inline CaseOperand I32(Shape shape) { return Typed(DType::kI32, std::move(shape)).In(-5, 5); }
inline CaseOperand I64(Shape shape) { return Typed(DType::kI64, std::move(shape)).In(-5, 5); }
inline CaseOperand U8(Shape shape) { return Typed(DType::kU8, std::move(shape)).In(0, 5); }
inline CaseOperand Bool(Shape shape) { return Typed(DType::kBool, std::move(shape)).In(0, 1); }

struct OpCase {
  std::string op;
  std::vector<CaseOperand> operands;
  AttributeMap attributes;
  int64_t ranks = 0;                  // the size of the mesh axis `data`; 0: no mesh, for ops that are no collectives
  std::string refused;                // "C1": the constraint that inference (for values, evaluation) must refuse by
  std::string no_gradient;            // reason why this row's gradient is not compared; not needed if the op has none
  std::vector<size_t> gradient_of;    // the results whose gradient is compared; empty: all of float dtypes
  std::vector<size_t> zero_gradient;  // operands whose gradient is always zero in this row
  bool is_large = false;  // for kernels that work in blocks; tests of rules, which have smaller rows, skip it
  double gradient_tolerance = 1e-6;   // relative to the largest gradient, in f64
  double placement_tolerance = 1e-5;  // relative to the largest result, N ranks against one, in f64

  OpCase Refused(std::string constraint) && { return refused = std::move(constraint), std::move(*this); }
  OpCase NoGradient(std::string reason) && { return no_gradient = std::move(reason), std::move(*this); }
  OpCase GradientOf(std::vector<size_t> results) && { return gradient_of = std::move(results), std::move(*this); }
  OpCase ZeroGradient(std::vector<size_t> of) && { return zero_gradient = std::move(of), std::move(*this); }
  OpCase Large() && { return is_large = true, std::move(*this); }
  OpCase Ranks(int64_t count) && { return ranks = count, std::move(*this); }
  OpCase Tolerance(double gradient, double placement = 1e-5) && {
    return gradient_tolerance = gradient, placement_tolerance = placement, std::move(*this);
  }

  // Returns a text such as "matmul f32[2,3], f32[3,4] {transpose_a=true}".
  std::string ToString() const;
};

inline std::ostream& operator<<(std::ostream& out, const OpCase& row) { return out << row.ToString(); }

inline OpCase Case(std::string op, std::vector<CaseOperand> operands, AttributeMap attributes = {}) {
  OpCase row;
  row.op = std::move(op);
  row.operands = std::move(operands);
  row.attributes = std::move(attributes);
  return row;
}

// One family per file: test/op_cases/<family>_cases.cc.
std::vector<OpCase> ElementwiseCases();
std::vector<OpCase> RandomCases();
std::vector<OpCase> ShapeCases();
std::vector<OpCase> ReductionCases();
std::vector<OpCase> IndexingCases();
std::vector<OpCase> MatMulCases();
std::vector<OpCase> CollectiveCases();
std::vector<OpCase> ParameterServerCases();
std::vector<OpCase> FusionCases();
std::vector<OpCase> ScanCases();
std::vector<OpCase> ConvolutionCases();
std::vector<OpCase> PoolingCases();
std::vector<OpCase> NormalizationCases();
std::vector<OpCase> SoftmaxCases();
std::vector<OpCase> AttentionCases();
std::vector<OpCase> OptimizerCases();
// The index of the gradient among the operands of an optimizer op. Operands after it are options.
inline size_t GradientOperand(const OpDef& op) { return op.operand_names().size() - 1; }

// All cases, in that order; below, the accepted ones and the refused ones.
const std::vector<OpCase>& AllOpCases();
std::vector<OpCase> AcceptedOpCases();
std::vector<OpCase> RefusedOpCases();
// The first row of each op and every third row after it; in `make test-everything` all rows.
std::vector<OpCase> SomeOf(const std::vector<OpCase>& rows);

// The operands' values, the same at each call. Random ones depend on `seed`.
std::vector<Tensor> CaseInputs(const OpCase& row, uint64_t seed = 1);

}  // namespace lockstep
