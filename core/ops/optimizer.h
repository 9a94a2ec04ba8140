// What optimizer ops share, so that the block of one says what is its own: states, options, names for users, and the
// formula. For the authors of op blocks only.
//
// The formula is written once, in terms (core/ops/term.h): it is the op's decomposition, and its reference meaning is
// the same formula in f64 (docs/decisions/0010). What it should compute, test/op_cases/pytorch_test.cc knows.

#pragma once

#include <functional>
#include <string>
#include <vector>

#include "core/builder.h"
#include "core/op_def.h"
#include "core/ops/term.h"

namespace lockstep::ops {

// What a formula sees of a node. Tensors have the dtype that is computed with: that of the variable, or f32 where that
// is a half, in which (1 - beta) * g^2 would vanish.
class Update : public NodeContext {
 public:
  // `dtype` is the variable's, which the node's own operands have where it is decomposed, and f64 where it is
  // evaluated.
  Update(DecomposeContext& c, DType dtype);

  const Term& w() const { return operands_.front(); }
  const Shape& shape() const { return shape_; }  // of the variable
  DType dtype() const { return dtype_; }
  const Term& g() const { return operands_[op_.operand_names().size() - 1]; }
  const Term& state(size_t i) const { return operands_[i + 1]; }
  // An attribute that is a float: a number, or the scalar that it refers to.
  Term option(std::string_view attribute) const;
  // g with the gradient of the L2 penalty, weight_decay * w.
  Term DecayedGradient() const { return g() + option("weight_decay") * w(); }
  // The number of this step, from 1, a scalar. Of ops that count steps.
  Term step() const;
  // 1 - beta^step: what a mean that started as zero is divided by. Of ops that count steps.
  Term BiasCorrection(const Term& beta) const { return OneMinusPower(beta, step(), computed_); }
  // beta^step / (1 - beta^step). Of ops that count steps.
  Term PowerOverRest(double beta) const { return ops::PowerOverRest(beta, step(), computed_); }
  // x^y of scalars, as exact as the rest.
  Term Power(const Term& x, const Term& y) const { return ops::Power(x, y, computed_); }
  // The next value of operand i, in its type.
  Value Next(size_t i, const Term& term) const;

 private:
  Builder& builder_;
  std::vector<TensorType> types_;  // of the operands
  Shape shape_;
  DType dtype_, computed_;
  std::vector<Term> operands_;  // of the op; the step and options as they are
};

// The next values of w and of the states, in order.
using Formula = std::function<std::vector<Term>(Update&)>;

enum class Steps { kNotCounted, kCounted };

// Whether an element's next value depends on others: on a norm, a mean, a product. Where ranks share the variable, such
// a formula is distributed op by op, so that what it puts together is put together over all of them.
enum class Elements { kApart, kTogether };

// An optimizer op with operands w, the states, `step` if steps are counted, and g, which are of w's type, or of the one
// that a state says; with results next_w and next_<state>; with the attribute learning_rate, to which the block adds
// its own in the order in which users give them; and with inference, reference meaning, decomposition and placement.
OpDef Optimizer(std::string name, const std::vector<OptimizerState>& states, Formula formula,
                Steps steps = Steps::kNotCounted, Elements elements = Elements::kApart);

}  // namespace lockstep::ops
