// Arithmetic, comparison and selection, element by element, with NumPy's broadcasting.

#include <limits>

#include "core/builder.h"
#include "frontends/onnx/bounds.h"
#include "frontends/onnx/op_table.h"
#include "frontends/onnx/tensor_data.h"
#include "frontends/onnx/torch_formulas.h"
#include "onnx/onnx.pb.h"

namespace lockstep {
namespace {

absl::Status Variadic(OnnxNode& n, std::string_view op) {
  ASSIGN_OR_RETURN(const std::vector<Value> xs, BroadcastInputs(n));
  Value result = xs[0];
  for (size_t i = 1; i < xs.size(); ++i) result = n.b().Op(op, {result, xs[i]});
  n.SetOutput(0, result);
  return absl::OkStatus();
}

// Max and Min. PyTorch's clamp by tensors is exported as these; where both are equal, its gradient goes to x instead of
// being shared. A NaN bound gives NaN.
absl::Status Extremum(OnnxNode& n, std::string_view op) {
  if (!n.TorchOperator().starts_with("clamp") || n.num_inputs() != 2) return Variadic(n, op);
  ASSIGN_OR_RETURN(const std::vector<Value> xs, BroadcastInputs(n));
  Builder& b = n.b();
  const Value bound = xs[1], limited = op == "max" ? AtLeast(b, xs[0], bound) : AtMost(b, xs[0], bound);
  const bool may_be_nan = IsFloat(bound.dtype()) && n.FindConstant(n.input(1)) == nullptr;
  n.SetOutput(0, may_be_nan ? b.Select(b.Compare(bound, bound, "ne"), bound, limited) : limited);
  return absl::OkStatus();
}

// PyTorch's binary_cross_entropy contains max(log(x), -100).
absl::Status Max(OnnxNode& n) {
  const Value x = n.input(0);
  RETURN_IF_ERROR(n.b().status());
  const Tensor* bound = n.num_inputs() == 2 ? n.DataIndependentInput(1) : nullptr;
  if (bound == nullptr || bound->num_elements() != 1 || bound->At(0) != -100) return Extremum(n, "max");
  ASSIGN_OR_RETURN(const std::vector<Value> xs, BroadcastInputs(n));
  const Value result = xs[0] == x ? BoundedLog(n.b(), x, xs[1]) : Value();
  if (!result) return Extremum(n, "max");
  n.SetOutput(0, result);
  return absl::OkStatus();
}

absl::Status Log(OnnxNode& n) {
  const Value x = n.input(0);
  RETURN_IF_ERROR(n.b().status());
  n.SetOutput(0, n.TorchOperator() == "logit.default" ? LogitOf(n.b(), x) : LogOf(n.b(), x));
  return absl::OkStatus();
}

absl::Status Sqrt(OnnxNode& n) {
  const Value x = n.input(0);
  RETURN_IF_ERROR(n.b().status());
  n.SetOutput(0, IsVariance(x) ? NormOf(n.b(), x) : n.b().Sqrt(x));
  return absl::OkStatus();
}

absl::Status Mean(OnnxNode& n) {
  ASSIGN_OR_RETURN(const std::vector<Value> xs, BroadcastInputs(n));
  Value sum = xs[0];
  for (size_t i = 1; i < xs.size(); ++i) sum = n.b().Add(sum, xs[i]);
  n.SetOutput(0, n.b().Scale(sum, 1.0 / static_cast<double>(xs.size())));
  return absl::OkStatus();
}

absl::Status Compare(OnnxNode& n, std::string direction) {
  ASSIGN_OR_RETURN(const std::vector<Value> xs, BroadcastInputs(n));
  n.SetOutput(0, n.b().Compare(xs[0], xs[1], std::move(direction)));
  return absl::OkStatus();
}

absl::Status Reciprocal(OnnxNode& n) {
  const Value x = n.input(0);
  n.SetOutput(0, n.b().Div(n.b().SplatLike(1.0, x), x));
  return absl::OkStatus();
}

// The dtype in which a power is computed if the dtypes of base and exponent may differ. It is f64 for an integer to a
// float power, and if the base's dtype may not hold the exponent exactly: rounding could make an odd exponent even.
DType PowType(const OnnxNode& n, DType base, DType exponent) {
  if (exponent == base || (!IsFloat(base) && !IsFloat(exponent))) return base;
  const Tensor* known = IsFloat(base) ? n.DataIndependentInput(1) : nullptr;
  if (known == nullptr) return DType::kF64;
  const Tensor rounded = known->Converted(base);
  for (int64_t i = 0; i < known->num_elements(); ++i) {
    if (rounded.At(i) != known->At(i)) return DType::kF64;
  }
  return base;
}

// The result has the dtype of the base.
absl::Status Pow(OnnxNode& n) {
  Builder& b = n.b();
  ASSIGN_OR_RETURN(std::vector<Value> xs, BroadcastInputs(n));
  const Tensor* exponent = n.DataIndependentInput(1);
  if (exponent != nullptr && exponent->num_elements() == 1 && exponent->At(0) == 2.0) {
    n.SetOutput(0, b.Mul(xs[0], xs[0]));
    return absl::OkStatus();
  }
  const DType base = xs[0].dtype();
  const DType common = PowType(n, base, xs[1].dtype());
  const Value x = b.Convert(xs[0], common), y = b.Convert(xs[1], common);
  const bool is_norm = n.TorchOperator() == "linalg_vector_norm.default" && IsSum(x) && exponent != nullptr &&
                       exponent->num_elements() == 1 && exponent->At(0) > 0;
  n.SetOutput(0, b.Convert(is_norm ? NormOf(b, x, y) : b.Op("pow", {x, y}), base));
  return absl::OkStatus();
}

absl::Status Mod(OnnxNode& n) {
  const int64_t fmod = n.Int("fmod", 0);
  if (fmod != 0 && fmod != 1) return n.Error() << "attribute fmod is " << fmod << ", expected 0 or 1";
  return Binary(n, fmod == 1 ? "fmod" : "remainder");
}

absl::Status IsNaN(OnnxNode& n) {
  const Value x = n.input(0);
  n.SetOutput(0, n.b().Compare(x, x, "ne"));
  return absl::OkStatus();
}

absl::Status IsInf(OnnxNode& n) {
  Builder& b = n.b();
  const Value x = n.input(0);
  RETURN_IF_ERROR(b.status());
  const bool negative = n.Flag("detect_negative", true), positive = n.Flag("detect_positive", true);
  const double infinity = std::numeric_limits<double>::infinity();
  const Value magnitude = negative && positive ? b.Unary("abs", x) : x;
  // If neither sign is detected, the result is x < -infinity, which is always false.
  n.SetOutput(
      0, b.Compare(magnitude, b.SplatLike(positive ? infinity : -infinity, x), negative || positive ? "eq" : "lt"));
  return absl::OkStatus();
}

absl::Status Where(OnnxNode& n) {
  ASSIGN_OR_RETURN(const std::vector<Value> xs, BroadcastInputs(n));
  const Value formula = SelectOf(n.b(), n.TorchOperator(), xs[0], xs[1], xs[2]);
  n.SetOutput(0, formula ? formula : n.b().Select(xs[0], xs[1], xs[2]));
  return absl::OkStatus();
}

// PyTorch's hardtanh and relu6 are also exported as Clip; their gradient at the bounds is 0. For its clamp, and for a
// Clip of unknown origin, the gradient at the bounds goes to x.
absl::Status Clip(OnnxNode& n) {
  Builder& b = n.b();
  const Value x = n.input(0);
  RETURN_IF_ERROR(b.status());
  Value low, high;
  if (n.opset() < 11) {
    constexpr double kMost = std::numeric_limits<float>::max();  // the default from opset 6 on, also for f64
    if (n.opset() >= 6 || n.has_attr("min")) low = b.SplatLike(n.Float("min", -kMost), x);
    if (n.opset() >= 6 || n.has_attr("max")) high = b.SplatLike(n.Float("max", kMost), x);
  } else {
    for (int i = 1; i < 3; ++i) {
      if (!n.has_input(i)) continue;
      if (n.type(i).num_elements() != 1) return n.Error() << "bound " << n.type(i) << " is not a scalar";
      (i == 1 ? low : high) = b.Broadcast(b.Reshape(n.input(i), Shape()), x.shape(), {});
    }
  }
  const std::string made_of = n.TorchOperator();
  const bool is_hard = made_of == "hardtanh.default" || made_of == "relu6.default";
  Value result = x;
  if (low) result = is_hard ? Above(b, result, low) : AtLeast(b, result, low);
  if (high) result = is_hard ? Below(b, result, high) : AtMost(b, result, high);
  n.SetOutput(0, result);
  return absl::OkStatus();
}

absl::Status ConvertTo(OnnxNode& n, DType dtype) {
  n.Ignore("saturate");    // only for 8-bit floats
  n.Ignore("round_mode");  // likewise
  n.SetOutput(0, n.b().Convert(n.input(0), dtype));
  return absl::OkStatus();
}

absl::Status Cast(OnnxNode& n) {
  const absl::StatusOr<DType> dtype = DTypeFromOnnx(static_cast<int>(n.Int("to", 0)));
  if (!dtype.ok()) return n.Unsupported() << "attribute to: " << dtype.status().message();
  return ConvertTo(n, *dtype);
}

absl::Status CastLike(OnnxNode& n) {
  const Value like = n.input(1);
  RETURN_IF_ERROR(n.b().status());
  return ConvertTo(n, like.dtype());
}

absl::Status Identity(OnnxNode& n) {
  if (n.TorchOperator() == "detach.default" && IsFloat(n.type(0).dtype)) {
    n.SetOutput(0, n.b().Op("stop_gradient", {n.input(0)}));
    return absl::OkStatus();
  }
  n.SetAnyOutput(0, n.AnyInput(0));
  return absl::OkStatus();
}

}  // namespace

std::vector<OnnxOp> ElementwiseOps() {
  return {
      {"Neg", 1, kNoEnd, 1, 1, [](OnnxNode& n) { return Unary(n, "neg"); }},
      {"Abs", 1, kNoEnd, 1, 1, [](OnnxNode& n) { return Unary(n, "abs"); }},
      {"Sign", 1, kNoEnd, 1, 1, [](OnnxNode& n) { return Unary(n, "sign"); }},
      {"Exp", 1, kNoEnd, 1, 1, [](OnnxNode& n) { return Unary(n, "exp"); }},
      {"Log", 1, kNoEnd, 1, 1, Log},
      {"Sqrt", 1, kNoEnd, 1, 1, Sqrt},
      {"Erf", 1, kNoEnd, 1, 1, [](OnnxNode& n) { return Unary(n, "erf"); }},
      {"Floor", 1, kNoEnd, 1, 1, [](OnnxNode& n) { return Unary(n, "floor"); }},
      {"Ceil", 1, kNoEnd, 1, 1, [](OnnxNode& n) { return Unary(n, "ceil"); }},
      {"Round", 11, kNoEnd, 1, 1, [](OnnxNode& n) { return Unary(n, "round"); }},
      {"Sin", 7, kNoEnd, 1, 1, [](OnnxNode& n) { return Unary(n, "sin"); }},
      {"Cos", 7, kNoEnd, 1, 1, [](OnnxNode& n) { return Unary(n, "cos"); }},
      {"Tan", 7, kNoEnd, 1, 1, [](OnnxNode& n) { return Unary(n, "tan"); }},
      {"Asin", 7, kNoEnd, 1, 1, [](OnnxNode& n) { return Unary(n, "asin"); }},
      {"Acos", 7, kNoEnd, 1, 1, [](OnnxNode& n) { return Unary(n, "acos"); }},
      {"Atan", 7, kNoEnd, 1, 1, [](OnnxNode& n) { return Unary(n, "atan"); }},
      {"Sinh", 9, kNoEnd, 1, 1, [](OnnxNode& n) { return Unary(n, "sinh"); }},
      {"Cosh", 9, kNoEnd, 1, 1, [](OnnxNode& n) { return Unary(n, "cosh"); }},
      {"Asinh", 9, kNoEnd, 1, 1, [](OnnxNode& n) { return Unary(n, "asinh"); }},
      {"Acosh", 9, kNoEnd, 1, 1, [](OnnxNode& n) { return Unary(n, "acosh"); }},
      {"Atanh", 9, kNoEnd, 1, 1, [](OnnxNode& n) { return Unary(n, "atanh"); }},
      {"Mod", 10, kNoEnd, 2, 2, Mod},
      {"IsNaN", 9, kNoEnd, 1, 1, IsNaN},
      {"IsInf", 10, kNoEnd, 1, 1, IsInf},
      {"Not", 1, kNoEnd, 1, 1, [](OnnxNode& n) { return Unary(n, "not"); }},
      {"Reciprocal", 1, kNoEnd, 1, 1, Reciprocal},
      {"Add", 1, kNoEnd, 2, 2, [](OnnxNode& n) { return Binary(n, "add"); }},
      {"Sub", 1, kNoEnd, 2, 2, [](OnnxNode& n) { return Binary(n, "sub"); }},
      {"Mul", 1, kNoEnd, 2, 2, [](OnnxNode& n) { return Binary(n, "mul"); }},
      {"Div", 1, kNoEnd, 2, 2, [](OnnxNode& n) { return Binary(n, "div"); }},
      {"Pow", 1, kNoEnd, 2, 2, Pow},
      {"And", 1, kNoEnd, 2, 2, [](OnnxNode& n) { return Binary(n, "and"); }},
      {"Or", 1, kNoEnd, 2, 2, [](OnnxNode& n) { return Binary(n, "or"); }},
      {"Xor", 1, kNoEnd, 2, 2, [](OnnxNode& n) { return Compare(n, "ne"); }},
      {"Sum", 1, kNoEnd, 1, kAnyNumber, [](OnnxNode& n) { return Variadic(n, "add"); }},
      {"Max", 1, kNoEnd, 1, kAnyNumber, Max},
      {"Min", 1, kNoEnd, 1, kAnyNumber, [](OnnxNode& n) { return Extremum(n, "min"); }},
      {"Mean", 1, kNoEnd, 1, kAnyNumber, Mean},
      {"Equal", 1, kNoEnd, 2, 2, [](OnnxNode& n) { return Compare(n, "eq"); }},
      {"Less", 1, kNoEnd, 2, 2, [](OnnxNode& n) { return Compare(n, "lt"); }},
      {"LessOrEqual", 12, kNoEnd, 2, 2, [](OnnxNode& n) { return Compare(n, "le"); }},
      {"Greater", 1, kNoEnd, 2, 2, [](OnnxNode& n) { return Compare(n, "gt"); }},
      {"GreaterOrEqual", 12, kNoEnd, 2, 2, [](OnnxNode& n) { return Compare(n, "ge"); }},
      {"Where", 9, kNoEnd, 3, 3, Where},
      {"Clip", 1, 10, 1, 1, Clip},
      {"Clip", 11, kNoEnd, 1, 3, Clip},
      {"Cast", 6, kNoEnd, 1, 1, Cast},
      {"CastLike", 15, kNoEnd, 2, 2, CastLike},
      {"Identity", 1, kNoEnd, 1, 1, Identity, /*takes_any_kind=*/true},
  };
}

}  // namespace lockstep
