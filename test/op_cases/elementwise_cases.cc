#include <limits>

#include "test/op_cases/op_case.h"

namespace lockstep {
namespace {

AttributeMap Direction(std::string direction) { return {{"direction", std::move(direction)}}; }
AttributeMap To(DType dtype) { return {{"dtype", dtype}}; }

// Angles over several periods, and numbers in the domains of the inverse functions: each op has its own range.
void AddTrigonometry(std::vector<OpCase>& rows) {
  struct Range {
    const char* op;
    double low, high;
  };
  for (const auto& [op, low, high] : {Range{"sin", -7, 7},
                                      {"cos", -7, 7},
                                      {"tan", -1.3, 1.3},
                                      {"asin", -0.9, 0.9},
                                      {"acos", -0.9, 0.9},
                                      {"atan", -4, 4},
                                      {"sinh", -3, 3},
                                      {"cosh", -3, 3},
                                      {"asinh", -4, 4},
                                      {"acosh", 1.2, 4},
                                      {"atanh", -0.9, 0.9}}) {
    rows.push_back(Case(op, {F64({2, 3}).In(low, high)}));
    rows.push_back(Case(op, {F32({6, 2}).In(low, high)}));
    rows.push_back(Case(op, {F16({12}).In(low, high)}));
    rows.push_back(Case(op, {BF16({}).In(low, high)}));
    rows.push_back(Case(op, {F32({0, 3})}).NoGradient("no elements"));
    rows.push_back(Case(op, {I32({2})}).Refused("C1"));
  }
}

std::vector<OpCase> UnaryCases() {
  std::vector<OpCase> rows;
  for (const char* op :
       {"neg", "abs", "sign", "exp", "tanh", "sigmoid", "softsign", "erf", "relu", "floor", "ceil", "round"}) {
    rows.push_back(Case(op, {F64({2, 3})}));
    rows.push_back(Case(op, {F32({4, 6, 1})}));
    rows.push_back(Case(op, {F32({}).In(0.1, 2)}));
    rows.push_back(Case(op, {BF16({6})}));
    rows.push_back(Case(op, {F16({2, 1, 2, 3})}));
    rows.push_back(Case(op, {F32({2, 0})}).NoGradient("no elements"));
    rows.push_back(Case(op, {Bool({2})}).Refused("C1"));
    rows.push_back(Case(op, {U8({2})}).Refused("C1"));
  }
  for (const char* op : {"log", "log1p", "sqrt", "rsqrt"}) {
    rows.push_back(Case(op, {F64({2, 3}).In(0.2, 4)}));
    rows.push_back(Case(op, {F32({6, 2}).In(0.2, 4)}));
    rows.push_back(Case(op, {BF16({}).In(0.2, 4)}));
    rows.push_back(Case(op, {F32({0, 3})}).NoGradient("no elements"));
    rows.push_back(Case(op, {I32({2})}).Refused("C1"));
  }
  for (const char* op : {"neg", "abs", "sign"}) {
    rows.push_back(Case(op, {I32({2, 6})}));
    rows.push_back(Case(op, {Tensor::Of<int8_t>({4}, {-128, 127, 0, -1})}));
    rows.push_back(Case(op, {Tensor::Of<int64_t>({2}, {INT64_MIN, INT64_MAX})}));
  }
  AddTrigonometry(rows);
  // Values at kinks, infinities and NaN.
  const double inf = std::numeric_limits<double>::infinity(), nan = std::numeric_limits<double>::quiet_NaN();
  for (const char* op : {"neg",   "abs",  "sign", "exp",   "tanh", "sigmoid", "softsign", "erf",   "relu",
                         "floor", "ceil", "log",  "log1p", "sqrt", "rsqrt",   "round",    "sin",   "cos",
                         "tan",   "asin", "acos", "atan",  "sinh", "cosh",    "asinh",    "acosh", "atanh"}) {
    rows.push_back(Case(op, {Tensor::Of<double>({7}, {0.0, -0.0, -1.0, 0.4, inf, -inf, nan})})
                       .NoGradient("no differences at kinks and infinities"));
  }
  return rows;
}

// The operands of max, min, fmod and remainder whose gradient is zero if the second operand is the larger one.
std::vector<size_t> ZeroIfAbove(const std::string& op) {
  if (op == "max") return {0};
  if (op == "min" || op == "fmod" || op == "remainder") return {1};
  return {};
}

// The lowest integer divided by -1; powers with negative, zero, one and large bases and exponents; shifts by up to all
// bits.
template <typename T>
void AddIntegerCorners(std::vector<OpCase>& rows) {
  const T low = std::numeric_limits<T>::lowest(), high = std::numeric_limits<T>::max();
  const T minus_one = static_cast<T>(-1), minus_two = static_cast<T>(-2);
  const auto row = [&](const char* op, const std::vector<T>& x, const std::vector<T>& y = {}) {
    const Shape shape = {static_cast<int64_t>(x.size())};
    std::vector<CaseOperand> operands = {Tensor::Of<T>(shape, x)};
    if (!y.empty()) operands.push_back(Tensor::Of<T>(shape, y));
    rows.push_back(Case(op, std::move(operands)));
  };
  const std::vector<T> x = {low, low, high, minus_one, 7, minus_two, 0, 0, 1};
  std::vector<T> y = {minus_one, low, minus_one, low, minus_two, 3, 5, high, low};
  for (const char* op : {"add", "sub", "mul", "max", "min"}) row(op, x, y);
  for (const char* op : {"and", "or", "xor", "shift_left", "shift_right"}) row(op, x, y);
  const T bits = static_cast<T>(sizeof(T) * 8), last = static_cast<T>(bits - 1);
  for (const char* op : {"shift_left", "shift_right"}) row(op, {high, low, low, 7, 5}, {last, last, bits, bits, 0});
  for (T& divisor : y) divisor = divisor == 0 ? T(1) : divisor;
  for (const char* op : {"div", "fmod", "remainder"}) row(op, x, y);
  row("not", x);
  const T even = static_cast<T>(high - 1);
  row("pow", {0, 0, 1, minus_one, minus_one, 2, 3, minus_two, low, high}, {0, 3, high, high, even, 70, 100, 63, 1, 2});
  if (low == 0) return;
  row("pow", {1, minus_one, minus_one, 2, minus_two, low, high},
      {low, low, minus_one, minus_one, minus_two, minus_one, low});
}

// fmod and remainder: operands of both signs, infinite, zero and NaN; quotients that are whole, tiny or huge.
void AddRests(std::vector<OpCase>& rows) {
  const double inf = std::numeric_limits<double>::infinity(), nan = std::numeric_limits<double>::quiet_NaN();
  const Shape shape = {16};
  const std::vector<double> x = {-4.3, 7.2, 5, -7.2, 0, -0.0, 0, -0.0, -3, 3, inf, 1, nan, 1, 1e-30, 1e30};
  const std::vector<double> y = {2.1, -3.4, 8, 3.4, -2, 2, 2, -2, inf, -inf, 2, 0, 2, nan, -1, 3};
  for (const char* op : {"fmod", "remainder"}) {
    for (DType dtype : {DType::kF64, DType::kF32, DType::kF16, DType::kBF16}) {
      rows.push_back(
          Case(op, {Tensor::Of<double>(shape, x).Converted(dtype), Tensor::Of<double>(shape, y).Converted(dtype)})
              .NoGradient("no differences at jumps"));
    }
    // Quotients from -6.1 to 6.4, none near a whole number.
    rows.push_back(Case(op, {Tensor::Of<double>({6}, {4.3, -4.3, 7.7, -9.2, 6.4, 0.7}),
                             Tensor::Of<double>({6}, {2.0, 2.0, -3.3, 1.5, 1.0, -2.0})}));
  }
}

std::vector<OpCase> ArithmeticCases() {
  std::vector<OpCase> rows;
  for (const char* op : {"add", "sub", "mul", "div", "fmod", "remainder", "max", "min", "pow"}) {
    // Away from zero, where div and pow are smooth.
    const auto at = [](CaseOperand operand) { return std::move(operand).In(0.3, 2.0); };
    rows.push_back(Case(op, {at(F64({2, 3})), at(F64({2, 3}))}));
    rows.push_back(Case(op, {at(F32({6, 1, 2})), at(F32({6, 1, 2}))}));
    rows.push_back(Case(op, {F32({}).In(0.3, 2), F32({}).In(2, 2)}).ZeroGradient(ZeroIfAbove(op)));
    rows.push_back(Case(op, {at(BF16({12})), at(BF16({12}))}));
    rows.push_back(Case(op, {I32({2, 3}), I32({2, 3}).In(1, 4)}));
    rows.push_back(Case(op, {U8({12}), U8({12}).In(1, 9)}));
    rows.push_back(
        Case(op, {Tensor::Of<int64_t>({3}, {INT64_MIN, INT64_MAX, -7}), Tensor::Of<int64_t>({3}, {-1, 2, 2})}));
    rows.push_back(Case(op, {F32({0}), F32({0})}).NoGradient("no elements"));
    rows.push_back(Case(op, {F32({2}), F64({2})}).Refused("C1"));
    rows.push_back(Case(op, {F32({2}), F32({1})}).Refused("C1"));
    rows.push_back(Case(op, {Bool({2}), Bool({2})}).Refused("C2"));
  }
  for (const char* op : {"add", "sub", "mul", "div", "max", "min"})
    rows.push_back(Case(op, {F64({4, 3}), F64({4, 3})}));
  AddRests(rows);
  AddIntegerCorners<int8_t>(rows);
  AddIntegerCorners<int16_t>(rows);
  AddIntegerCorners<int32_t>(rows);
  AddIntegerCorners<int64_t>(rows);
  AddIntegerCorners<uint8_t>(rows);
  AddIntegerCorners<uint64_t>(rows);
  rows.push_back(Case("pow", {Tensor::Of<double>({3}, {-1.5, -2, 0.5}), Tensor::Of<double>({3}, {2, 3, -2})})
                     .NoGradient("x^y is not continuous in y where x is negative"));
  return rows;
}

std::vector<OpCase> LogicCases() {
  std::vector<OpCase> rows;
  rows.push_back(Case("not", {Bool({2, 3})}));
  rows.push_back(Case("not", {Bool({})}));
  rows.push_back(Case("not", {Bool({0})}));
  rows.push_back(Case("not", {I32({2, 6})}));
  rows.push_back(Case("not", {F32({2})}).Refused("C1"));
  for (const char* op : {"and", "or", "xor"}) {
    rows.push_back(Case(op, {Bool({6, 2}), Bool({6, 2})}));
    rows.push_back(Case(op, {Bool({}), Bool({})}));
    rows.push_back(Case(op, {Bool({2, 0}), Bool({2, 0})}));
    rows.push_back(Case(op, {I32({2, 6}), I32({2, 6})}));
    rows.push_back(Case(op, {U8({6}), U8({6})}));
    rows.push_back(Case(op, {F32({2}), F32({2})}).Refused("C1"));
    rows.push_back(Case(op, {Bool({2}), I32({2})}).Refused("C1"));
    rows.push_back(Case(op, {Bool({2}), Bool({3})}).Refused("C1"));
  }
  for (const char* op : {"shift_left", "shift_right"}) {
    rows.push_back(Case(op, {I32({2, 6}), I32({2, 6})}));
    rows.push_back(Case(op, {I64({6}), I64({6}).In(0, 70)}));
    rows.push_back(Case(op, {U8({12}), U8({12}).In(0, 9)}));
    rows.push_back(Case(op, {I32({0}), I32({0})}));
    rows.push_back(Case(op, {I32({2}), I64({2})}).Refused("C1"));
    rows.push_back(Case(op, {F32({2}), F32({2})}).Refused("C2"));
    rows.push_back(Case(op, {Bool({2}), Bool({2})}).Refused("C2"));
  }
  for (const char* direction : {"eq", "ne", "lt", "le", "gt", "ge"}) {
    rows.push_back(Case("compare", {F32({4, 3}), F32({4, 3})}, Direction(direction)));
    rows.push_back(Case("compare", {I64({6}).In(0, 2), I64({6}).In(0, 2)}, Direction(direction)));
    rows.push_back(Case("compare", {Bool({6}), Bool({6})}, Direction(direction)));
  }
  rows.push_back(Case("compare", {BF16({}), BF16({})}, Direction("lt")));
  rows.push_back(Case("compare", {F32({0}), F32({0})}, Direction("lt")));
  rows.push_back(Case("compare", {F32({2}), F64({2})}, Direction("eq")).Refused("C1"));
  rows.push_back(Case("compare", {F32({2}), F32({2})}, Direction("equal")).Refused("C2"));
  const auto within = [](int64_t low, int64_t high) -> AttributeMap {
    return {{"low", low}, {"high", high}, {"what", std::string("a label")}};
  };
  rows.push_back(Case("within", {I64({6, 2}).In(0, 9)}, within(0, 10)));
  rows.push_back(Case("within", {I32({6}).In(-5, 4)}, within(-5, 5)));
  rows.push_back(Case("within", {Tensor::Of<int64_t>({2}, {INT64_MIN, INT64_MAX - 1})}, within(INT64_MIN, INT64_MAX)));
  rows.push_back(Case("within", {Tensor::Of<int8_t>({3}, {-128, 0, 127})}, within(-1000, 1000)));
  rows.push_back(Case("within", {I64({0})}, within(0, 0)));
  rows.push_back(Case("within", {F32({2})}, within(0, 10)).Refused("C1"));
  rows.push_back(Case("within", {Bool({2})}, within(0, 10)).Refused("C1"));
  rows.push_back(Case("within", {I64({2})}, within(1, 0)).Refused("C2"));
  rows.push_back(Case("within", {Tensor::Of<int64_t>({2}, {0, 10})}, within(0, 10)).Refused("C3"));
  rows.push_back(Case("within", {Tensor::Of<uint64_t>({2}, {0, UINT64_MAX})}, within(0, 10)).Refused("C3"));
  rows.push_back(Case("select", {Bool({4, 3}), F64({4, 3}), F64({4, 3})}));
  rows.push_back(Case("select", {Bool({6, 2, 1}), F32({6, 2, 1}), F32({6, 2, 1})}));
  rows.push_back(Case("select", {Bool({6}), I32({6}), I32({6})}));
  rows.push_back(Case("select", {Bool({0}), F32({0}), F32({0})}).NoGradient("no elements"));
  rows.push_back(Case("select", {Tensor::Of<bool>({}, {true}), F32({}), F32({})}).ZeroGradient({2}));
  rows.push_back(Case("select", {Bool({2}), F32({2}), F32({3})}).Refused("C1"));
  rows.push_back(Case("select", {Bool({3}), F32({2}), F32({2})}).Refused("C2"));
  rows.push_back(Case("select", {I32({2}), F32({2}), F32({2})}).Refused("C2"));
  for (DType from : kAllDTypes) {
    for (DType to : {DType::kF32, DType::kBF16, DType::kI8, DType::kU16, DType::kI64, DType::kBool}) {
      rows.push_back(Case("convert", {Typed(from, {2, 6}).In(0, 3)}, To(to)));
    }
  }
  for (DType from : kAllDTypes) {
    for (DType to : kAllDTypes) {
      if (SizeOf(from) != SizeOf(to) || (to == DType::kBool && from != to)) continue;
      // The sum of the ranks' terms is rounded to 16 bits, so its last bit may differ from one rank's.
      const double tolerance = SizeOf(from) == 2 && IsFloat(from) ? 1e-2 : 1e-5;
      rows.push_back(Case("bitcast", {Typed(from, {2, 6}).In(0, from == DType::kBool ? 1 : 3)}, To(to))
                         .Tolerance(1e-6, tolerance));
    }
  }
  rows.push_back(Case("bitcast", {Tensor::Of<int32_t>({3}, {0x3fc00000, -1, INT32_MIN})}, To(DType::kF32)));
  rows.push_back(Case("bitcast", {F32({0})}, To(DType::kI32)));
  rows.push_back(Case("bitcast", {F32({2})}, To(DType::kI64)).Refused("C1"));
  rows.push_back(Case("bitcast", {U8({2})}, To(DType::kBool)).Refused("C2"));
  rows.push_back(Case("convert", {F64({})}, To(DType::kF32)));
  rows.push_back(Case("convert", {F64({0, 2})}, To(DType::kF32)).NoGradient("no elements"));
  rows.push_back(Case("convert",
                      {Tensor::Of<float>({4}, {-300.0F, 300.0F, std::numeric_limits<float>::quiet_NaN(), -0.5F})},
                      To(DType::kI8)));
  return rows;
}

}  // namespace

std::vector<OpCase> ElementwiseCases() {
  std::vector<OpCase> rows = UnaryCases();
  for (OpCase& row : ArithmeticCases()) rows.push_back(std::move(row));
  for (OpCase& row : LogicCases()) rows.push_back(std::move(row));
  return rows;
}

}  // namespace lockstep
