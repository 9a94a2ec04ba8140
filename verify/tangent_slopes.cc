// Slopes of elementwise functions, as graphs of ops that exact arithmetic has.

#include <algorithm>
#include <iterator>
#include <numbers>

#include "core/builder.h"
#include "verify/exact_interpreter.h"
#include "verify/tangent_rule.h"

namespace lockstep::verify {
namespace {

// The operands of an elementwise op of one or two floats, x and z, and its result y, with which a slope is computed.
struct At {
  Builder& b;
  Value x, z, y;

  Value Number(double number) const { return b.SplatLike(number, x); }
  Value OneOverRoot(Value of) const { return b.Div(Number(1), b.Sqrt(of)); }
  Value Is(const char* direction, Value left, Value right, double yes, Value no) const {
    return b.Select(b.Compare(left, right, direction), Number(yes), no);
  }
  // 1 where `direction` holds between `left` and `right`, 1/2 where they are equal.
  Value Chosen(const char* direction, Value left, Value right) const {
    return Is(direction, left, right, 1, Is("eq", left, right, 0.5, Number(0)));
  }
  Value Square(Value of) const { return b.Mul(of, of); }
};

struct Slope {
  std::string_view op;
  size_t operand;
  Value (*slope)(const At& at);
};

// The partial derivatives of y by the operands.
constexpr Slope kSlopes[] = {
    {"abs", 0, [](const At& s) { return s.b.Unary("sign", s.x); }},
    {"relu", 0, [](const At& s) { return s.Is("gt", s.x, s.Number(0), 1, s.Number(0)); }},
    {"exp", 0, [](const At& s) { return s.y; }},
    {"log", 0, [](const At& s) { return s.b.Div(s.Number(1), s.x); }},
    {"log1p", 0, [](const At& s) { return s.b.Div(s.Number(1), s.b.Add(s.Number(1), s.x)); }},
    {"sqrt", 0, [](const At& s) { return s.b.Div(s.Number(0.5), s.y); }},
    {"rsqrt", 0, [](const At& s) { return s.b.Scale(s.b.Mul(s.y, s.Square(s.y)), -0.5); }},
    {"tanh", 0, [](const At& s) { return s.b.Sub(s.Number(1), s.Square(s.y)); }},
    {"sigmoid", 0, [](const At& s) { return s.b.Sub(s.y, s.Square(s.y)); }},
    {"softsign", 0,
     [](const At& s) { return s.b.Div(s.Number(1), s.Square(s.b.Add(s.Number(1), s.b.Unary("abs", s.x)))); }},
    {"erf", 0, [](const At& s) { return s.b.Scale(s.b.Exp(s.b.Neg(s.Square(s.x))), 2 * std::numbers::inv_sqrtpi); }},
    {"sin", 0, [](const At& s) { return s.b.Unary("cos", s.x); }},
    {"cos", 0, [](const At& s) { return s.b.Neg(s.b.Unary("sin", s.x)); }},
    {"tan", 0, [](const At& s) { return s.b.Add(s.Number(1), s.Square(s.y)); }},
    {"asin", 0, [](const At& s) { return s.OneOverRoot(s.b.Sub(s.Number(1), s.Square(s.x))); }},
    {"acos", 0, [](const At& s) { return s.b.Neg(s.OneOverRoot(s.b.Sub(s.Number(1), s.Square(s.x)))); }},
    {"atan", 0, [](const At& s) { return s.b.Div(s.Number(1), s.b.Add(s.Number(1), s.Square(s.x))); }},
    {"sinh", 0, [](const At& s) { return s.b.Unary("cosh", s.x); }},
    {"cosh", 0, [](const At& s) { return s.b.Unary("sinh", s.x); }},
    {"asinh", 0, [](const At& s) { return s.OneOverRoot(s.b.Add(s.Square(s.x), s.Number(1))); }},
    {"acosh", 0, [](const At& s) { return s.OneOverRoot(s.b.Sub(s.Square(s.x), s.Number(1))); }},
    {"atanh", 0, [](const At& s) { return s.b.Div(s.Number(1), s.b.Sub(s.Number(1), s.Square(s.x))); }},
    {"div", 0, [](const At& s) { return s.b.Div(s.Number(1), s.z); }},
    {"div", 1, [](const At& s) { return s.b.Neg(s.b.Div(s.x, s.Square(s.z))); }},
    {"max", 0, [](const At& s) { return s.Chosen("gt", s.x, s.z); }},
    {"max", 1, [](const At& s) { return s.Chosen("gt", s.z, s.x); }},
    {"min", 0, [](const At& s) { return s.Chosen("lt", s.x, s.z); }},
    {"min", 1, [](const At& s) { return s.Chosen("lt", s.z, s.x); }},
    // x^z has the slopes z x^(z - 1) and x^z log(x).
    {"pow", 0, [](const At& s) { return s.b.Mul(s.z, s.b.Op("pow", {s.x, s.b.Sub(s.z, s.Number(1))})); }},
    {"pow", 1, [](const At& s) { return s.b.Mul(s.y, s.b.Log(s.x)); }},
    // x - z q, where q, the rounded quotient, is (x - y) / z.
    {"fmod", 0, [](const At& s) { return s.Number(1); }},
    {"fmod", 1, [](const At& s) { return s.b.Neg(s.b.Unary("round", s.b.Div(s.b.Sub(s.x, s.y), s.z))); }},
    {"remainder", 0, [](const At& s) { return s.Number(1); }},
    {"remainder", 1, [](const At& s) { return s.b.Neg(s.b.Unary("round", s.b.Div(s.b.Sub(s.x, s.y), s.z))); }},
};

absl::StatusOr<ExactTensor> EvaluateSlope(const Slope& slope, const Forward& f) {
  Graph graph;
  std::vector<Value> values;
  std::vector<ExactTensor> inputs;
  for (const ExactTensor* tensor : {f.x[0], f.x.back(), f.y[0]}) {
    inputs.push_back(*tensor);
    ASSIGN_OR_RETURN(values.emplace_back(), graph.AddInput("v" + std::to_string(values.size()), tensor->type()));
  }
  Builder b(graph);
  const Value result = slope.slope({b, values[0], values[1], values[2]});
  RETURN_IF_ERROR(b.status());
  RETURN_IF_ERROR(graph.AddResult("slope", result));
  ASSIGN_OR_RETURN(std::vector<ExactTensor> results, RunExactlyOnOneRank(graph, inputs, f.assumptions));
  return std::move(results[0]);
}

// An operand that does not move has no part, even where the slope is infinite.
absl::Status BySlopeOf(Forward& f, size_t operand) {
  const auto row = std::find_if(std::begin(kSlopes), std::end(kSlopes), [&](const Slope& slope) {
    return slope.op == f.node.op_name() && slope.operand == operand;
  });
  if (row == std::end(kSlopes)) return Unruled(f);
  ASSIGN_OR_RETURN(const ExactTensor slope, EvaluateSlope(*row, f));
  std::vector<Exact>& dy = f.out();
  for (size_t i = 0; i < dy.size(); ++i) {
    if (!f.tangents(operand)[i].is_zero()) dy[i] += slope.numbers()[i] * f.tangents(operand)[i];
  }
  return absl::OkStatus();
}

}  // namespace

absl::Status Unruled(const Forward& f) { return Unimplemented() << f.node.op_name() << " has no exact derivative"; }

absl::Status BySlopes(Forward& f) {
  for (size_t i = 0; i < f.x.size(); ++i) {
    if (f.dx[i]) RETURN_IF_ERROR(BySlopeOf(f, i));
  }
  return absl::OkStatus();
}

}  // namespace lockstep::verify
