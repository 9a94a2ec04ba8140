// Activation functions: one op each, or a few elementwise ones. If a branch of a select could overflow, its argument is
// limited first, so that the gradient of the branch that is not taken stays finite. Parameters and inputs are often
// exactly zero, so an expression for a function that is smooth at 0 also has the right derivative there.

#include <cmath>

#include "core/builder.h"
#include "frontends/onnx/bounds.h"
#include "frontends/onnx/op_table.h"
#include "frontends/onnx/recurrent_activations.h"

namespace lockstep {
namespace {

// Sets y = f(b, x).
template <typename F>
absl::Status Map(OnnxNode& n, F f) {
  const Value x = n.input(0);
  RETURN_IF_ERROR(n.b().status());
  n.SetOutput(0, f(n.b(), x));
  return absl::OkStatus();
}

// x for x > 0, else scale * (exp(x / by) - 1). The derivative at 0 is that from the left, as in PyTorch.
Value ExponentialUnit(Builder& b, Value x, double scale, double by = 1.0) {
  const Value zero = b.SplatLike(0.0, x), is_positive = b.Compare(x, zero, "gt");
  const Value limited = b.Select(is_positive, zero, x);
  const Value exponential = b.AddScalar(b.Exp(by == 1.0 ? limited : b.Scale(limited, 1.0 / by)), -1.0);
  return b.Select(is_positive, x, b.Scale(exponential, scale));
}

absl::Status LeakyRelu(OnnxNode& n) {
  const double alpha = n.Float("alpha", 0.01f);
  return Map(n, [&](Builder& b, Value x) { return IfPositive(b, x, b.Scale(x, alpha)); });
}

absl::Status PRelu(OnnxNode& n) {
  const Value x = n.input(0), slope = n.input(1);
  Builder& b = n.b();
  RETURN_IF_ERROR(b.status());
  if (n.opset() < 7 && slope.shape().rank() == 1 && slope.type().num_elements() > 1) {
    RETURN_IF_ERROR(n.RequireRank(0, 2));
    if (slope.type().num_elements() != x.shape()[1])
      return n.Error() << "slope " << slope.type() << " is not of the channels of " << x.type();
    n.SetOutput(0, IfPositive(b, x, b.Mul(x, b.BroadcastAlong(slope, x.shape(), 1))));
    return absl::OkStatus();
  }
  ASSIGN_OR_RETURN(const Shape shape, BroadcastShapes(n, {x, slope}));
  if (shape != x.shape()) return n.Error() << "slope " << slope.type() << " does not broadcast to " << x.type();
  n.SetOutput(0, IfPositive(b, x, b.Mul(x, BroadcastTo(b, slope, shape))));
  return absl::OkStatus();
}

absl::Status ThresholdedRelu(OnnxNode& n) {
  const double alpha = n.Float("alpha", 1.0);
  return Map(n, [&](Builder& b, Value x) {
    return b.Select(b.Compare(x, b.SplatLike(alpha, x), "gt"), x, b.SplatLike(0.0, x));
  });
}

// Integers are computed in f64, which is exact for up to 32 bits.
absl::Status Shrink(OnnxNode& n) {
  const double lambd = n.Float("lambd", 0.5), bias = n.Float("bias", 0.0);
  const Value x = n.input(0);
  Builder& b = n.b();
  RETURN_IF_ERROR(b.status());
  if (!IsFloat(x.dtype()) && SizeOf(x.dtype()) > 4) return n.Unsupported() << "input of " << x.type();
  const Value number = IsFloat(x.dtype()) ? x : b.Convert(x, DType::kF64);
  const Value above = b.Compare(number, b.SplatLike(lambd, number), "gt");
  const Value shrunk = b.Select(above, b.AddScalar(number, -bias), b.SplatLike(0.0, number));
  const Value below = b.Compare(number, b.SplatLike(-lambd, number), "lt");
  n.SetOutput(0, b.Convert(b.Select(below, b.AddScalar(number, bias), shrunk), x.dtype()));
  return absl::OkStatus();
}

absl::Status Elu(OnnxNode& n) {
  const double alpha = n.Float("alpha", 1.0);
  return Map(n, [&](Builder& b, Value x) { return ExponentialUnit(b, x, alpha); });
}

absl::Status Celu(OnnxNode& n) {
  const double alpha = n.Float("alpha", 1.0);
  if (alpha == 0.0) return n.Error() << "attribute alpha is 0";
  return Map(n, [&](Builder& b, Value x) { return ExponentialUnit(b, x, alpha, alpha); });
}

absl::Status Selu(OnnxNode& n) {
  const bool is_short = n.opset() < 6;  // the defaults had four digits
  const double alpha = n.Float("alpha", is_short ? 1.6732f : 1.67326319217681884765625);
  const double gamma = n.Float("gamma", is_short ? 1.0507f : 1.05070102214813232421875);
  return Map(n, [&](Builder& b, Value x) { return b.Scale(ExponentialUnit(b, x, alpha), gamma); });
}

absl::Status HardSigmoid(OnnxNode& n) {
  const double alpha = n.Float("alpha", 0.2f), beta = n.Float("beta", 0.5);
  return Map(n, [&](Builder& b, Value x) { return HardLimit(b, b.AddScalar(b.Scale(x, alpha), beta)); });
}

absl::Status HardSwish(OnnxNode& n) {
  return Map(n, [&](Builder& b, Value x) { return b.Mul(x, HardLimit(b, b.AddScalar(b.Scale(x, 1.0 / 6.0), 0.5))); });
}

absl::Status Softplus(OnnxNode& n) { return Map(n, SoftplusOf); }

absl::Status Mish(OnnxNode& n) {
  return Map(n, [](Builder& b, Value x) { return b.Mul(x, b.Tanh(SoftplusOf(b, x))); });
}

absl::Status Swish(OnnxNode& n, double default_alpha) {
  const double alpha = n.Float("alpha", default_alpha);
  return Map(n,
             [&](Builder& b, Value x) { return b.Mul(x, b.Unary("sigmoid", alpha == 1.0 ? x : b.Scale(x, alpha))); });
}

absl::Status SwiGlu(OnnxNode& n) {
  const double alpha = n.Float("alpha", 1.0);
  const Value gate = n.input(0), linear = n.input(1);
  RETURN_IF_ERROR(n.b().status());
  if (gate.type() != linear.type())
    return n.Error() << "inputs are " << gate.type() << " and " << linear.type() << ", expected one type";
  Builder& b = n.b();
  const Value sigmoid = b.Unary("sigmoid", alpha == 1.0 ? gate : b.Scale(gate, alpha));
  n.SetOutput(0, b.Mul(b.Mul(gate, sigmoid), linear));
  return absl::OkStatus();
}

// x * (1 + s) / 2, where s is a function of x that rises from -1 to 1.
Value GatedBy(Builder& b, Value x, Value s) { return b.Mul(b.Scale(x, 0.5), b.AddScalar(s, 1.0)); }

Value GeluOf(Builder& b, Value x) { return GatedBy(b, x, b.Unary("erf", b.Scale(x, std::sqrt(0.5)))); }

Value TanhGeluOf(Builder& b, Value x) {
  const Value cube = b.Mul(b.Mul(x, x), x);
  // sqrt(2 / pi)
  return GatedBy(b, x, b.Tanh(b.Scale(b.Add(x, b.Scale(cube, 0.044715)), 0.7978845608028654)));
}

absl::Status Gelu(OnnxNode& n) {
  const std::string approximate = n.String("approximate", "none");
  if (approximate != "none" && approximate != "tanh") {
    return n.Unsupported() << "attribute approximate is '" << approximate << "', expected none or tanh";
  }
  return Map(n, approximate == "none" ? GeluOf : TanhGeluOf);
}

absl::Status BiasGelu(OnnxNode& n) {
  RETURN_IF_ERROR(n.RequireRank(0, 1));
  const Value x = n.input(0), bias = n.input(1);
  RETURN_IF_ERROR(n.b().status());
  if (bias.shape() != Shape({x.shape()[x.shape().rank() - 1]}))
    return n.Error() << "bias " << bias.type() << " is not of the last dimension of " << x.type();
  ASSIGN_OR_RETURN(const std::vector<Value> xs, BroadcastInputs(n));
  n.SetOutput(0, GeluOf(n.b(), n.b().Add(xs[0], xs[1])));
  return absl::OkStatus();
}

}  // namespace

std::vector<OnnxOp> ActivationOps() {
  return {
      {"Relu", 1, kNoEnd, 1, 1, [](OnnxNode& n) { return Unary(n, "relu"); }},
      {"Sigmoid", 1, kNoEnd, 1, 1, [](OnnxNode& n) { return Unary(n, "sigmoid"); }},
      {"Softsign", 1, kNoEnd, 1, 1, [](OnnxNode& n) { return Unary(n, "softsign"); }},
      {"Tanh", 1, kNoEnd, 1, 1, [](OnnxNode& n) { return Unary(n, "tanh"); }},
      {"LeakyRelu", 1, kNoEnd, 1, 1, LeakyRelu},
      {"PRelu", 1, kNoEnd, 2, 2, PRelu},
      {"ThresholdedRelu", 10, kNoEnd, 1, 1, ThresholdedRelu},
      {"Shrink", 9, kNoEnd, 1, 1, Shrink},
      {"Elu", 1, kNoEnd, 1, 1, Elu},
      {"Celu", 12, kNoEnd, 1, 1, Celu},
      {"Selu", 1, kNoEnd, 1, 1, Selu},
      {"HardSigmoid", 1, kNoEnd, 1, 1, HardSigmoid},
      {"HardSwish", 14, kNoEnd, 1, 1, HardSwish},
      {"Softplus", 1, kNoEnd, 1, 1, Softplus},
      {"Mish", 18, kNoEnd, 1, 1, Mish},
      {"Swish", 24, kNoEnd, 1, 1, [](OnnxNode& n) { return Swish(n, 1.0); }},
      {"SwiGLU", 28, kNoEnd, 2, 2, SwiGlu},
      {"Gelu", 20, kNoEnd, 1, 1, Gelu},
      // ONNX Runtime's own, as its docs/ContribOperators.md defines them.
      {"Gelu", 1, 1, 1, 1, [](OnnxNode& n) { return Map(n, GeluOf); }, false, "com.microsoft"},
      {"BiasGelu", 1, 1, 2, 2, BiasGelu, false, "com.microsoft"},
      {"QuickGelu", 1, 1, 1, 1, [](OnnxNode& n) { return Swish(n, 1.702f); }, false, "com.microsoft"},
  };
}

}  // namespace lockstep
