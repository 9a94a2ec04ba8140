// Optimizer steps: the next values of a variable and of its state. The formulas are those of torch.optim.
//
// Learning rates are attributes, constants of the compiled program: a schedule of learning rates is not expressed by these ops.

#include <cmath>

#include "core/builder.h"
#include "core/ops/op_list.h"
#include "core/ops/rules.h"

namespace lockstep {
namespace {

constexpr char kNoGradient[] = "an optimizer step is where differentiation ends";

// --- Inference ---------------------------------------------------------------------------------------------------

// The variable, its state and the gradient are the operands but for `step`, if there is one.
bool IsStep(const OpDef& op, size_t i) { return op.operand_names()[i] == "step"; }

absl::Status CheckTypes(const InferContext& c) {
  if (!IsFloat(c.dtype(0))) return c.Error("C1") << "w is " << c.operand(0) << ", expected a floating-point dtype";
  for (size_t i = 1; i < c.num_operands(); ++i) {
    if (IsStep(c.op(), i)) {
      const TensorType expected{DType::kI64, Shape()};
      if (c.operand(i) != expected) return c.Error("C4") << "step is " << c.operand(i) << ", expected " << expected;
    } else if (c.operand(i) != c.operand(0)) {
      return c.Error("C2") << c.op().operand_names()[i] << " is " << c.operand(i) << ", expected " << c.operand(0)
                           << ", the type of w";
    }
  }
  return absl::OkStatus();
}

// Error C3 unless the attribute is finite, at least 0 and below `limit`.
absl::Status CheckRate(const InferContext& c, const std::string& name, double limit) {
  const double value = c.attr<double>(name);
  if (std::isfinite(value) && value >= 0 && value < limit) return absl::OkStatus();
  ErrorStream error = c.Error("C3");
  error << name << " is " << value << ", expected a finite number, at least 0";
  if (std::isfinite(limit)) error << " and below " << limit;
  return error;
}

absl::Status InferOptimizer(InferContext& c) {
  RETURN_IF_ERROR(CheckTypes(c));
  for (const OpDef::AttributeDef& attribute : c.op().attribute_defs()) {
    if (!std::holds_alternative<double>(attribute.example)) continue;
    RETURN_IF_ERROR(CheckRate(c, attribute.name, attribute.name.starts_with("beta") ? 1.0 : HUGE_VAL));
  }
  return c.SetResults(std::vector<TensorType>(c.op().result_names().size(), c.operand(0)));
}

// --- Evaluation --------------------------------------------------------------------------------------------------

// The gradient with that of the L2 penalty. Without a penalty a weight that is infinite has no part in it, as 0 times it is NaN.
double WithDecay(double g, double w, double decay) { return decay == 0 ? g : g + decay * w; }

absl::Status EvalSgd(EvalContext& c) {
  const double rate = c.attr<double>("learning_rate"), decay = c.attr<double>("weight_decay");
  const Tensor w = c.operand(0).Converted(DType::kF64), g = c.operand(1).Converted(DType::kF64);
  Tensor next_w(w.type());
  const auto out = next_w.mutable_data<double>();
  for (size_t i = 0; i < out.size(); ++i) {
    const double wi = w.data<double>()[i];
    out[i] = wi - rate * WithDecay(g.data<double>()[i], wi, decay);
  }
  c.result() = next_w.Converted(c.result().dtype());
  return absl::OkStatus();
}

absl::Status EvalSgdMomentum(EvalContext& c) {
  const double rate = c.attr<double>("learning_rate"), decay = c.attr<double>("weight_decay");
  const double momentum = c.attr<double>("momentum");
  const bool nesterov = c.attr<bool>("nesterov");
  const Tensor w = c.operand(0).Converted(DType::kF64), v = c.operand(1).Converted(DType::kF64);
  const Tensor g = c.operand(2).Converted(DType::kF64);
  Tensor next_w(w.type()), next_v(w.type());
  const auto w_out = next_w.mutable_data<double>(), v_out = next_v.mutable_data<double>();
  for (size_t i = 0; i < w_out.size(); ++i) {
    const double wi = w.data<double>()[i];
    const double gi = WithDecay(g.data<double>()[i], wi, decay);
    v_out[i] = momentum * v.data<double>()[i] + gi;
    w_out[i] = wi - rate * (nesterov ? gi + momentum * v_out[i] : v_out[i]);
  }
  c.result(0) = next_w.Converted(c.result(0).dtype());
  c.result(1) = next_v.Converted(c.result(1).dtype());
  return absl::OkStatus();
}

absl::Status EvalAdam(EvalContext& c) {
  const double rate = c.attr<double>("learning_rate"), decay = c.attr<double>("weight_decay");
  const double beta1 = c.attr<double>("beta1"), beta2 = c.attr<double>("beta2"), epsilon = c.attr<double>("epsilon");
  const bool decoupled = c.attr<bool>("decoupled");
  const Tensor w = c.operand(0).Converted(DType::kF64), m = c.operand(1).Converted(DType::kF64);
  const Tensor v = c.operand(2).Converted(DType::kF64), g = c.operand(4).Converted(DType::kF64);
  const int64_t step = c.operand(3).data<int64_t>()[0];
  if (step < 1) return c.Error("C5") << "step is " << step << ", expected at least 1";
  const double correction1 = 1 - std::pow(beta1, static_cast<double>(step));
  const double correction2 = 1 - std::pow(beta2, static_cast<double>(step));
  Tensor next_w(w.type()), next_m(w.type()), next_v(w.type());
  const auto w_out = next_w.mutable_data<double>(), m_out = next_m.mutable_data<double>();
  const auto v_out = next_v.mutable_data<double>();
  for (size_t i = 0; i < w_out.size(); ++i) {
    const double wi = w.data<double>()[i];
    const double gi = WithDecay(g.data<double>()[i], wi, decoupled ? 0 : decay);
    m_out[i] = beta1 * m.data<double>()[i] + (1 - beta1) * gi;
    v_out[i] = beta2 * v.data<double>()[i] + (1 - beta2) * gi * gi;
    const double decayed = decoupled && decay != 0 ? wi * (1 - rate * decay) : wi;
    w_out[i] = decayed - rate / correction1 * m_out[i] / (std::sqrt(v_out[i] / correction2) + epsilon);
  }
  c.result(0) = next_w.Converted(c.result(0).dtype());
  c.result(1) = next_m.Converted(c.result(1).dtype());
  c.result(2) = next_v.Converted(c.result(2).dtype());
  return absl::OkStatus();
}

// --- Decomposition -----------------------------------------------------------------------------------------------

// Adds the L2 penalty's gradient, unless there is none.
Value WithDecay(Builder& b, Value g, Value w, double decay) { return decay == 0 ? g : b.Add(g, b.Scale(w, decay)); }

std::vector<Value> DecomposeSgd(DecomposeContext& c) {
  Builder& b = c.b();
  const Value w = c.operand(0), g = WithDecay(b, c.operand(1), w, c.attr<double>("weight_decay"));
  return {b.Sub(w, b.Scale(g, c.attr<double>("learning_rate")))};
}

std::vector<Value> DecomposeSgdMomentum(DecomposeContext& c) {
  Builder& b = c.b();
  const double momentum = c.attr<double>("momentum");
  const Value w = c.operand(0), g = WithDecay(b, c.operand(2), w, c.attr<double>("weight_decay"));
  const Value v = b.Add(b.Scale(c.operand(1), momentum), g);
  const Value direction = c.attr<bool>("nesterov") ? b.Add(g, b.Scale(v, momentum)) : v;
  return {b.Sub(w, b.Scale(direction, c.attr<double>("learning_rate"))), v};
}

// 1 - beta^step, a scalar. In f64, as 1 - 0.999 in f32 has lost four digits.
Value BiasCorrection(Builder& b, Value step, double beta) {
  const TensorType scalar{DType::kF64, Shape()};
  const Value power = b.Op("pow", {b.Splat(beta, scalar), b.Convert(step, DType::kF64)});
  return power ? b.Sub(b.Splat(1, scalar), power) : power;
}

// Halves are computed with as floats: (1 - beta2) * g^2 would vanish in f16, and the root of it would be lost in bf16.
std::vector<Value> DecomposeAdam(DecomposeContext& c) {
  Builder& b = c.b();
  const DType stored = c.operand(0).dtype(), computed = stored == DType::kF64 ? DType::kF64 : DType::kF32;
  const double rate = c.attr<double>("learning_rate"), decay = c.attr<double>("weight_decay");
  const double beta1 = c.attr<double>("beta1"), beta2 = c.attr<double>("beta2");
  const Value step = c.operand(3);
  Value w = b.Convert(c.operand(0), computed), g = b.Convert(c.operand(4), computed);
  if (c.attr<bool>("decoupled")) w = decay == 0 ? w : b.Scale(w, 1 - rate * decay);
  else g = WithDecay(b, g, w, decay);
  const Value m = b.Add(b.Scale(b.Convert(c.operand(1), computed), beta1), b.Scale(g, 1 - beta1));
  const Value v = b.Add(b.Scale(b.Convert(c.operand(2), computed), beta2), b.Scale(b.Mul(g, g), 1 - beta2));
  const auto spread = [&](Value scalar) { return b.Broadcast(b.Convert(scalar, computed), c.operand(0).shape(), {}); };
  const Value correction1 = BiasCorrection(b, step, beta1);
  const Value size = spread(b.Div(b.SplatLike(rate, correction1), correction1));
  const Value root = b.Mul(b.Sqrt(v), spread(b.Rsqrt(BiasCorrection(b, step, beta2))));
  const Value next = b.Sub(w, b.Div(b.Mul(size, m), b.AddScalar(root, c.attr<double>("epsilon"))));
  return {b.Convert(next, stored), b.Convert(m, stored), b.Convert(v, stored)};
}

// --- Placement ---------------------------------------------------------------------------------------------------

// Everything is where the variable is, so that a partial gradient is reduced first: this is what puts the all_reduce of
// data-parallel training into the program. What differs between ranks must not reach a variable.
void PlaceOptimizer(PlacementContext& c) {
  const auto& names = c.op().operand_names();
  const size_t gradient = c.num_operands() - 1;
  for (size_t i = 0; i < c.num_operands(); ++i) {
    if (c.operand(i).is_local() || (c.operand(i).is_partial() && i != gradient)) {
      return c.Fail(names[i] + " is " + c.operand(i).ToString() + ": the ranks' copies of the variable would diverge");
    }
  }
  const Placement placement = c.operand(0);
  for (size_t i = 0; i < c.num_operands(); ++i) {
    c.Require(i, IsStep(c.op(), i) ? Placement::Replicated() : placement);
  }
  c.Result(placement);
}

// What the three ops have in common.
OpDef Optimizer(std::string name, const std::vector<std::string>& states) {
  OpDef def(std::move(name));
  def.Operand("w");
  for (const std::string& state : states) def.Operand(state);
  return def.Operand("g")
      .Attr<double>("learning_rate", "fixed when the program is compiled")
      .OptionalAttr<double>("weight_decay", 0.0, "weight of the L2 penalty")
      .Trait(kOptimizer)
      .Constraint("C1", "w has a floating-point dtype")
      .Constraint("C2", "g and the state have the type of w")
      .Constraint("C3", "rates are finite and at least 0, betas also below 1")
      .Infer(InferOptimizer)
      .NoGradient(kNoGradient)
      .Place(PlaceOptimizer);
}

}  // namespace

//===-- sgd -----------------------------------------------------------------------------------------------------===//
const OpDef& SgdOp() {
  static const OpDef def = Optimizer("sgd", {})
                               .Doc(
                                   "One step of gradient descent on the variable w with gradient g: w - learning_rate "
                                   "* (g + weight_decay * w).")
                               .Result("next_w")
                               .Eval(EvalSgd)
                               .Decompose(DecomposeSgd);
  return def;
}

//===-- sgd_momentum --------------------------------------------------------------------------------------------===//
const OpDef& SgdMomentumOp() {
  static const OpDef def =
      Optimizer("sgd_momentum", {"v"})
          .Doc(
              "One step of gradient descent with momentum: d = g + weight_decay * w, next_v = momentum * v + d, "
              "next_w = w - learning_rate * (nesterov ? d + momentum * next_v : next_v). v starts as zeros.")
          .Result("next_w")
          .Result("next_v")
          .Attr<double>("momentum", "the share of v that remains")
          .OptionalAttr<bool>("nesterov", false, "look ahead by one step")
          .Eval(EvalSgdMomentum)
          .Decompose(DecomposeSgdMomentum);
  return def;
}

//===-- adam ----------------------------------------------------------------------------------------------------===//
const OpDef& AdamOp() {
  static const OpDef def =
      Optimizer("adam", {"m", "v", "step"})
          .Doc(
              "One step of Adam (Kingma and Ba, 2015): d = g + weight_decay * w, next_m = beta1 * m + (1 - beta1) * d, "
              "next_v = "
              "beta2 * v + (1 - beta2) * d^2, next_w = w - learning_rate * (next_m / (1 - beta1^step)) / (sqrt(next_v "
              "/ (1 - "
              "beta2^step)) + epsilon). If decoupled it is AdamW (Loshchilov and Hutter, 2019): d = g, and w is first "
              "multiplied by 1 - learning_rate * weight_decay. m and v start as zeros; step counts this step, 1 for "
              "the first.")
          .Result("next_w")
          .Result("next_m")
          .Result("next_v")
          .OptionalAttr<double>("beta1", 0.9, "the share of m that remains")
          .OptionalAttr<double>("beta2", 0.999, "the share of v that remains")
          .OptionalAttr<double>("epsilon", 1e-8, "added to the root, against division by zero")
          .OptionalAttr<bool>("decoupled", false, "decay the variable itself rather than by an L2 penalty")
          .Constraint("C4", "step is a scalar i64")
          .Constraint("C5", "when it runs: step is at least 1")
          .Eval(EvalAdam)
          .Decompose(DecomposeAdam);
  return def;
}

}  // namespace lockstep
