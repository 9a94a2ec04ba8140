// What optimizer ops share, so that the block of one says what is its own: states, options, names for users, and the
// formula. For the authors of op blocks only.
//
// The formula is written once, with the Builder: it is the op's decomposition, and its reference meaning is the same
// formula in f64 (docs/decisions/0010). What it should compute, test/op_cases/pytorch_test.cc knows.

#pragma once

#include <functional>
#include <string>
#include <vector>

#include "core/builder.h"
#include "core/op_def.h"

namespace lockstep::ops {

// What a formula sees of a node. Tensors have the shape of the variable and the dtype that is computed with: that of
// the variable, or f32 where that is a half, in which (1 - beta) * g^2 would vanish. After an error values may be null,
// which the Builder takes.
class Update : public NodeContext {
 public:
  explicit Update(DecomposeContext& c);

  Builder& b() const { return builder_; }
  Value w() const { return operands_.front(); }
  Value g() const { return operands_.back(); }
  Value state(size_t i) const { return operands_[i + 1]; }
  double rate(std::string_view attribute) const { return attr<double>(attribute); }
  // g with the gradient of the L2 penalty, weight_decay * w. Without a penalty a weight that is infinite has no part in
  // it, as 0 times it is NaN.
  Value DecayedGradient() const;
  // The number of this step, from 1, as an f64 scalar. Of ops that count steps.
  Value step() const;
  // An f64 scalar, such as one computed from step(), for each element of the variable.
  Value Spread(Value scalar) const;

 private:
  Builder& builder_;
  DType computed_;
  Shape shape_;
  std::vector<Value> operands_;  // of the op; the step as it is
};

// The next values of w and of the states, in order.
using Formula = std::function<std::vector<Value>(Update&)>;

enum class Steps { kNotCounted, kCounted };

// An optimizer op with operands w, the states, `step` if steps are counted, and g; with results next_w and
// next_<state>; with the attribute learning_rate, to which the block adds its own in the order in which users give
// them; and with inference, reference meaning, decomposition and placement.
OpDef Optimizer(std::string name, const std::vector<OptimizerState>& states, Formula formula,
                Steps steps = Steps::kNotCounted);

}  // namespace lockstep::ops
