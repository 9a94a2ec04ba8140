// Adam and AdamW.

#include <cmath>

#include "core/ops/op_list.h"
#include "core/ops/optimizer.h"

namespace lockstep {
namespace {

// 1 - beta^step, a scalar in f64, as 1 - 0.999 in f32 has lost four digits. For a variable of less than f64 it is found
// without f64's pow, which GPUs do not have: as 1 - exp(x) = 2t / (t - 1) with t = tanh(x / 2), which loses nothing in
// f32 where x = step * log(beta) is small.
Value BiasCorrection(ops::Update& u, double beta) {
  Builder& b = u.b();
  const Value step = u.step();
  if (u.w() && u.w().dtype() == DType::kF64) {
    const Value power = b.Op("pow", {b.SplatLike(beta, step), step});
    return b.Sub(b.SplatLike(1, power), power);
  }
  const Value half = b.Convert(b.Scale(step, std::log(beta) / 2), DType::kF32);
  const Value tanh = b.Convert(b.Tanh(half), DType::kF64);
  return b.Div(b.Scale(tanh, 2), b.AddScalar(tanh, -1));
}

std::vector<Value> Adam(ops::Update& u) {
  Builder& b = u.b();
  const double rate = u.rate("learning_rate"), decay = u.rate("weight_decay");
  const double beta1 = u.rate("beta1"), beta2 = u.rate("beta2");
  const bool decoupled = u.attr<bool>("decoupled");
  const Value w = decoupled && decay != 0 ? b.Scale(u.w(), 1 - rate * decay) : u.w();
  const Value d = decoupled ? u.g() : u.DecayedGradient();
  const Value m = b.Add(b.Scale(u.state(0), beta1), b.Scale(d, 1 - beta1));
  const Value v = b.Add(b.Scale(u.state(1), beta2), b.Scale(b.Mul(d, d), 1 - beta2));
  const Value correction1 = BiasCorrection(u, beta1);
  const Value size = u.Spread(b.Div(b.SplatLike(rate, correction1), correction1));
  const Value root = b.Mul(b.Sqrt(v), u.Spread(b.Rsqrt(BiasCorrection(u, beta2))));
  return {b.Sub(w, b.Div(b.Mul(size, m), b.AddScalar(root, u.rate("epsilon")))), m, v};
}

}  // namespace

//===-- adam ----------------------------------------------------------------------------------------------------===//
const OpDef& AdamOp() {
  static const OpDef def =
      ops::Optimizer("adam", {{"m", "adam_m"}, {"v", "adam_v", /*is_never_negative=*/true}}, Adam, ops::Steps::kCounted)
          .Doc(
              "One step of Adam (Kingma and Ba, 2015): d = g + weight_decay * w, next_m = beta1 * m + (1 - beta1) * d, "
              "next_v = beta2 * v + (1 - beta2) * d^2, next_w = w - learning_rate * (next_m / (1 - beta1^step)) / "
              "(sqrt(next_v / (1 - beta2^step)) + epsilon). If decoupled it is AdamW (Loshchilov and Hutter, 2019): "
              "d = g, and w is first multiplied by 1 - learning_rate * weight_decay. m and v start as zeros; step "
              "counts this step, 1 for the first.")
          .OptionalAttr<double>("beta1", 0.9, "the share of m that remains")
          .In(AtLeast(0, 1))
          .OptionalAttr<double>("beta2", 0.999, "the share of v that remains")
          .In(AtLeast(0, 1))
          .OptionalAttr<double>("epsilon", 1e-8, "added to the root, against division by zero")
          .In(Above(0))
          .OptionalAttr<double>("weight_decay", 0.0, "weight of the L2 penalty, or of the decay if decoupled")
          .In(AtLeast(0))
          .OptionalAttr<bool>("decoupled", false, "decay the variable itself rather than by an L2 penalty")
          .KnownAs({.name = "Adam",
                    .doc = "Adam (Kingma and Ba, 2015), with bias correction; weight decay is added to the gradient.",
                    .defaults = {{"learning_rate", 1e-3}},
                    .fixed = {{"decoupled", false}}})
          .KnownAs({.name = "AdamW",
                    .doc = "Adam with decoupled weight decay (Loshchilov and Hutter, 2019): "
                           "w -= learning_rate * weight_decay * w.",
                    .defaults = {{"learning_rate", 1e-3}, {"weight_decay", 0.01}},
                    .fixed = {{"decoupled", true}}});
  return def;
}

}  // namespace lockstep
