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

// What a formula sees of a node. Tensors have the shape of the variable and the dtype that is computed with: that of
// the variable, or f32 where that is a half, in which (1 - beta) * g^2 would vanish.
class Update : public NodeContext {
 public:
  explicit Update(DecomposeContext& c);

  const Term& w() const { return operands_.front(); }
  const Term& g() const { return operands_[op_.operand_names().size() - 1]; }
  const Term& state(size_t i) const { return operands_[i + 1]; }
  // An attribute that is a float: a number, or the scalar that it refers to.
  Term option(std::string_view attribute) const;
  // g with the gradient of the L2 penalty, weight_decay * w.
  Term DecayedGradient() const { return g() + option("weight_decay") * w(); }
  // The number of this step, from 1, a scalar. Of ops that count steps.
  Term step() const;
  // 1 - beta^step: what a mean that started as zero is divided by. Of ops that count steps.
  Term BiasCorrection(const Term& beta) const { return OneMinusPower(beta, step(), computed_.dtype); }
  // beta^step / (1 - beta^step). Of ops that count steps.
  Term PowerOverRest(double beta) const { return ops::PowerOverRest(beta, step(), computed_.dtype); }
  // A term for each element of the variable.
  Value Tensor(const Term& term) const { return term.As(builder_, computed_); }

 private:
  Builder& builder_;
  TensorType computed_;
  std::vector<Term> operands_;  // of the op; the step and options as they are
};

// The next values of w and of the states, in order.
using Formula = std::function<std::vector<Term>(Update&)>;

enum class Steps { kNotCounted, kCounted };

// An optimizer op with operands w, the states, `step` if steps are counted, and g; with results next_w and
// next_<state>; with the attribute learning_rate, to which the block adds its own in the order in which users give
// them; and with inference, reference meaning, decomposition and placement.
OpDef Optimizer(std::string name, const std::vector<OptimizerState>& states, Formula formula,
                Steps steps = Steps::kNotCounted);

}  // namespace lockstep::ops
