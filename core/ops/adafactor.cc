// Adafactor: one op for matrices, which keeps second moments as means of rows and of columns, and one for vectors.

#include <algorithm>
#include <cmath>

#include "core/ops/op_list.h"
#include "core/ops/optimizer.h"

namespace lockstep {
namespace {

using ops::Term;

// epsilon1, or if that is 0 the distance of 1 from the next number in the variable's dtype.
Term Least(const ops::Update& u) {
  const Term least = u.option("epsilon1");
  if (!least.Is(0)) return least;
  switch (u.dtype()) {
    case DType::kF64: return 0x1p-52;
    case DType::kF16: return 0x1p-10;
    case DType::kBF16: return 0x1p-7;
    default: return 0x1p-23;
  }
}

// The root mean square of x.
Term RootMeanSquare(const ops::Update& u, const Term& x) {
  return Norm(x) / std::sqrt(static_cast<double>(std::max<int64_t>(u.shape().num_elements(), 1)));
}

// The next value of the variable. `square` is the estimate of the mean of g^2.
Term NextVariable(ops::Update& u, const Term& square) {
  const Term rate = u.option("learning_rate"), least = Least(u);
  const Term relative = Min(rate, Rsqrt(u.step()));
  const Term size = relative * Max(u.option("epsilon2"), RootMeanSquare(u, u.w()));
  const Term update = u.g() * Rsqrt(Max(square, least * least));
  const Term clipped = size / Max(1, RootMeanSquare(u, update) / u.option("d"));
  return (1 - rate * u.option("weight_decay")) * u.w() - clipped * update;
}

// The average of x and y, with the weight step^beta2_decay for y.
Term Averaged(ops::Update& u, const Term& x, const Term& y) {
  const Term share = u.Power(u.step(), u.option("beta2_decay"));
  return (1 - share) * x + share * y;
}

std::vector<Term> Adafactor(ops::Update& u) {
  const Term square = u.g() * u.g();
  const Term rows = Averaged(u, u.state(0), Mean(square, -1));
  const Term columns = Averaged(u, u.state(1), Mean(square, -2));
  return {NextVariable(u, rows * columns / Max(Mean(rows, -2), Least(u))), rows, columns};
}

std::vector<Term> AdafactorVector(ops::Update& u) {
  const Term square = Averaged(u, u.state(0), u.g() * u.g());
  return {NextVariable(u, square), square};
}

constexpr char kStep[] =
    "next_w = (1 - learning_rate * weight_decay) * w - a / max(1, rms(u) / d) * u, where u = g / sqrt(max(s, "
    "epsilon1^2)), a = max(epsilon2, rms(w)) * min(learning_rate, 1 / sqrt(step)), and rms is the root mean square of "
    "the whole variable. ";

OpDef AdafactorOf(std::string name, const std::vector<OptimizerState>& states, ops::Formula formula,
                  const std::string& doc) {
  OpDef op =
      ops::Optimizer(std::move(name), states, std::move(formula), ops::Steps::kCounted, ops::Elements::kTogether);
  op.Doc(doc)
      .OptionalAttr<double>("beta2_decay", -0.8, "the weight of the new square in the means is t^beta2_decay at step t")
      .In(AtMost(0))
      .OptionalAttr<double>("epsilon1", 0.0,
                            "the lower bound of a root mean square; 0 means the dtype's distance of 1 from the next "
                            "number")
      .In(AtLeast(0))
      .OptionalAttr<double>("epsilon2", 1e-3, "the lower bound of the variable's scale, by which steps are multiplied")
      .In(AtLeast(0))
      .OptionalAttr<double>("d", 1.0, "the root mean square above which an update is clipped")
      .In(AtLeast(1))
      .OptionalAttr<double>("weight_decay", 0.0, "weight of the decay of the variable itself")
      .In(AtLeast(0))
      .OrOperand();
  return op;
}

}  // namespace

//===-- adafactor -----------------------------------------------------------------------------------------------===//
const OpDef& AdafactorOp() {
  static const OpDef def =
      AdafactorOf(
          "adafactor",
          {{"rows", "adafactor_rows", /*is_never_negative=*/true, StateShape::kRows},
           {"columns", "adafactor_columns", /*is_never_negative=*/true, StateShape::kColumns}},
          Adafactor,
          std::string("One step of Adafactor (Shazeer and Stern, \"Adaptive learning rates with sublinear memory "
                      "cost\", 2018), as in PyTorch, for a matrix, or for a matrix at each index of the leading "
                      "dimensions: with p = step^beta2_decay, next_rows = (1 - p) * rows + p * mean of g^2 "
                      "along the last dimension, next_columns likewise along the last but one, s = next_rows * "
                      "next_columns / max(mean of next_rows, epsilon1); ") +
              kStep + "rows and columns start as zeros; step counts this step, 1 for the first.")
          .Updates({.least = 2})
          .UserName({.name = "Adafactor",
                     .doc =
                         "Adafactor (Shazeer and Stern, 2018): steps relative to the variable's scale. For variables "
                         "of two or more dimensions it keeps second moments of rows and of columns only, which need "
                         "almost no memory.\n\n"
                         "PyTorch's `eps` is the pair of epsilon1 and epsilon2.",
                     .defaults = {{"learning_rate", 0.01}},
                     .variants = {{"adafactor_vector"}}});
  return def;
}

//===-- adafactor_vector ----------------------------------------------------------------------------------------===//
const OpDef& AdafactorVectorOp() {
  static const OpDef def =
      AdafactorOf(
          "adafactor_vector", {{"square", "adafactor_square", /*is_never_negative=*/true}}, AdafactorVector,
          std::string("One step of Adafactor for a vector or a scalar, with a second moment for each element: "
                      "with p = step^beta2_decay, next_square = (1 - p) * square + p * g^2, s = next_square; ") +
              kStep + "square starts as zeros; step counts this step, 1 for the first.")
          .Updates({.most = 1});
  return def;
}

}  // namespace lockstep
