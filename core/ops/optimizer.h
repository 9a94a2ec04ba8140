// The common part of optimizer ops. The block of an optimizer adds its states, options, names for users, and formula.
// For the authors of op blocks only.
//
// The formula is written once, in terms (core/ops/term.h). It is the op's decomposition, and the same formula in f64 is
// its reference meaning (docs/decisions/0010). test/op_cases/pytorch_test.cc compares it with PyTorch.

#pragma once

#include <functional>
#include <string>
#include <vector>

#include "core/builder.h"
#include "core/op_def.h"
#include "core/ops/term.h"

namespace lockstep::ops {

// The operands and options of a node, for a formula. Tensors have the dtype of the computation: that of the variable,
// or f32 for a variable of 16 bits, in which (1 - beta) * g^2 would vanish.
class Update : public NodeContext {
 public:
  // `dtype` is the dtype of the variable. The node's operands have it when the node is decomposed, and are f64 when it
  // is evaluated.
  Update(DecomposeContext& c, DType dtype);

  const Term& w() const { return operands_.front(); }
  const Shape& shape() const { return shape_; }  // of the variable
  DType dtype() const { return dtype_; }
  const Term& g() const { return operands_[op_.operand_names().size() - 1]; }
  const Term& state(size_t i) const { return operands_[i + 1]; }
  // The value of a float attribute: a number, or the scalar operand that it refers to.
  Term option(std::string_view attribute) const;
  // g with the gradient of the L2 penalty, weight_decay * w.
  Term DecayedGradient() const { return g() + option("weight_decay") * w(); }
  // The number of this step, from 1, a scalar. Requires an op that counts steps.
  Term step() const;
  // 1 - beta^step: the divisor of a running mean that started as zero. Requires an op that counts steps.
  Term BiasCorrection(const Term& beta) const { return OneMinusPower(beta, step(), computed_); }
  // beta^step / (1 - beta^step). Requires an op that counts steps.
  Term PowerOverRest(double beta) const { return ops::PowerOverRest(beta, step(), computed_); }
  // x^(y * share) of scalars, in the precision of the computation.
  Term Power(const Term& x, const Term& y, const Term& share = 1) const { return ops::Power(x, y, share, computed_); }
  // `term` as the next value of operand i, converted to its type.
  Value Next(size_t i, const Term& term) const;

 private:
  Builder& builder_;
  std::vector<TensorType> types_;  // of the operands
  Shape shape_;
  DType dtype_, computed_;
  std::vector<Term> operands_;  // in the dtype of the computation, but f64 for the step and for options
};

// Returns the next values of w and of the states, in order.
using Formula = std::function<std::vector<Term>(Update&)>;

enum class Steps { kNotCounted, kCounted };

// kTogether: the next value of an element depends on other elements, by a norm, a mean or a matrix product. If ranks
// share the variable, such a formula is distributed op by op, so that norms, means and products cover all ranks.
enum class Elements { kApart, kTogether };

// Returns an optimizer op. Its operands are w, the states, `step` if steps are counted, and g. They have the type of w,
// except `step` and states with another StateShape. Its results are next_w and next_<state>. It has the attribute
// learning_rate, inference, reference meaning, decomposition and placement. The block adds further attributes in the
// order in which users give them.
OpDef Optimizer(std::string name, const std::vector<OptimizerState>& states, Formula formula,
                Steps steps = Steps::kNotCounted, Elements elements = Elements::kApart);

}  // namespace lockstep::ops
