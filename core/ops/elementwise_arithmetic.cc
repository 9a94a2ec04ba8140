// Elementwise arithmetic of two operands. Floats are computed in double and rounded to the dtype at the end. Integers
// wrap around on overflow. Integer division truncates toward zero; division by zero is an error, also for fmod and
// remainder.

#include <algorithm>
#include <cmath>

#include "core/builder.h"
#include "core/ops/op_list.h"
#include "core/ops/rules.h"

namespace lockstep {
namespace {

// Each op is a pair of functions. Integers are sign-extended and computed modulo 2^64: unsigned overflow is defined.
struct Add {
  static double OnFloats(double x, double y) { return x + y; }
  template <typename T>
  static T OnIntegers(T x, T y) {
    return static_cast<T>(static_cast<uint64_t>(x) + static_cast<uint64_t>(y));
  }
};

struct Sub {
  static double OnFloats(double x, double y) { return x - y; }
  template <typename T>
  static T OnIntegers(T x, T y) {
    return static_cast<T>(static_cast<uint64_t>(x) - static_cast<uint64_t>(y));
  }
};

struct Mul {
  static double OnFloats(double x, double y) { return x * y; }
  template <typename T>
  static T OnIntegers(T x, T y) {
    return static_cast<T>(static_cast<uint64_t>(x) * static_cast<uint64_t>(y));
  }
};

struct Div {
  static double OnFloats(double x, double y) { return x / y; }
  template <typename T>
  static T OnIntegers(T x, T y) {  // requires y != 0
    if constexpr (std::is_signed_v<T>) {
      if (y == -1)
        return Sub::OnIntegers<T>(0, x);  // the lowest integer has no positive counterpart and stays as it is
    }
    return static_cast<T>(x / y);
  }
};

struct Fmod {
  static double OnFloats(double x, double y) { return std::fmod(x, y); }
  template <typename T>
  static T OnIntegers(T x, T y) {  // requires y != 0
    if constexpr (std::is_signed_v<T>) {
      if (y == -1) return 0;  // the quotient of the lowest integer does not fit in the type
    }
    return static_cast<T>(x % y);
  }
};

struct Remainder {
  static double OnFloats(double x, double y) {
    const double rest = std::fmod(x, y);
    if (rest == 0) return std::copysign(0.0, y);
    return (rest < 0) != (y < 0) ? rest + y : rest;
  }
  template <typename T>
  static T OnIntegers(T x, T y) {  // requires y != 0
    const T rest = Fmod::OnIntegers(x, y);
    return rest != 0 && (rest < 0) != (y < 0) ? Add::OnIntegers(rest, y) : rest;
  }
};

struct Maximum {
  static double OnFloats(double x, double y) { return std::isnan(x) || x > y ? x : y; }
  template <typename T>
  static T OnIntegers(T x, T y) {
    return x > y ? x : y;
  }
};

struct Minimum {
  static double OnFloats(double x, double y) { return std::isnan(x) || x < y ? x : y; }
  template <typename T>
  static T OnIntegers(T x, T y) {
    return x < y ? x : y;
  }
};

struct Pow {
  static double OnFloats(double x, double y) { return std::pow(x, y); }
  template <typename T>
  static T OnIntegers(T x, T y) {  // requires x != 0 or y >= 0
    if constexpr (std::is_signed_v<T>) {
      // 1 / x^-y, truncated, is not zero only for x = 1 and -1.
      if (y < 0) return x == 1 ? T(1) : x == -1 ? T(y % 2 ? -1 : 1) : T(0);
    }
    T power = 1;
    for (; y != 0; y = static_cast<T>(y / 2)) {
      if (y % 2 != 0) power = Mul::OnIntegers(power, x);
      x = Mul::OnIntegers(x, x);
    }
    return power;
  }
};

constexpr char kDivisionByZero[] = "integer division by zero";

// True if the op F divides by zero for the integers x and y.
template <typename F, typename T>
bool DividesByZero(T x, T y) {
  if constexpr (std::is_same_v<F, Div> || std::is_same_v<F, Fmod> || std::is_same_v<F, Remainder>) return y == 0;
  if constexpr (std::is_same_v<F, Pow> && std::is_signed_v<T>) return x == 0 && y < 0;
  return false;
}

template <typename F>
absl::Status EvalArithmetic(EvalContext& c) {
  bool by_zero = false;
  DispatchDType(c.result().dtype(), [&](auto tag) {
    using T = typename decltype(tag)::type;
    const auto x = c.operand(0).data<T>(), y = c.operand(1).data<T>();
    const auto out = c.result().mutable_data<T>();
    for (size_t i = 0; i < x.size(); ++i) {
      if constexpr (std::is_same_v<T, bool>) {
        LOCKSTEP_CHECK(false) << c.op().name() << " of bool";  // (C2)
      } else if constexpr (std::is_integral_v<T>) {
        if (DividesByZero<F>(x[i], y[i])) by_zero = true;
        else out[i] = F::OnIntegers(x[i], y[i]);
      } else {
        out[i] = ConvertElement<T>(F::OnFloats(static_cast<double>(x[i]), static_cast<double>(y[i])));
      }
    }
  });
  if (by_zero) return InvalidArgument() << c.op().name() << ": " << kDivisionByZero;
  return absl::OkStatus();
}

// The common part of all ops of this file. Each op adds its gradient.
template <typename F>
OpDef Arithmetic(const char* name, const char* doc, ops::Linearity linearity = ops::Linearity::kNone) {
  return OpDef(name)
      .Doc(doc)
      .Operand("x")
      .Operand("y")
      .Trait(kElementwise)
      .Precision(PrecisionRule::kFollows)
      .Constraint("C1", "x and y have the same type")
      .Constraint("C2", "x and y are not bool")
      .Infer([](InferContext& c) -> absl::Status {
        RETURN_IF_ERROR(ops::CheckSameTypes(c, "C1"));
        RETURN_IF_ERROR(ops::CheckArithmetic(c, "C2"));
        return c.SetResult(c.operand(0));
      })
      .Eval(EvalArithmetic<F>)
      .Place([linearity](PlacementContext& c) { ops::PlaceElementwise(c, linearity); });
}

std::string RefuseDivisionByZero(const AttributeMap&) { return kDivisionByZero; }

// g where `direction` holds between x and y, half of it where they are equal, zero elsewhere.
Value WhereAhead(VjpContext& c, Value x, Value y, const char* direction) {
  Builder& b = c.b();
  const Value g = c.grad();
  const Value tie = b.Select(b.Compare(x, y, "eq"), b.Scale(g, 0.5), b.SplatLike(0.0, g));
  return b.Select(b.Compare(x, y, direction), g, tie);
}

void PowVjp(VjpContext& c) {
  Builder& b = c.b();
  const Value x = c.operand(0), y = c.operand(1), g = c.grad();
  const Value zero = b.SplatLike(0.0, x), one = b.SplatLike(1.0, x);
  // dx = g y x^(y-1), and 0 for y = 0 also where x^-1 is infinite.
  const Value flat = b.Compare(y, zero, "eq");
  const Value exponent = b.Select(flat, one, b.Sub(y, one));
  c.Contribute(0, b.Mul(g, b.Select(flat, zero, b.Mul(y, b.Op("pow", {x, exponent})))));
  // dy = g x^y log(x), and 0 for x = 0 and y at least 0, the limit for positive y. NaN for negative x, where x^y is not
  // continuous in y.
  const Value vanishes = b.Op("and", {b.Compare(x, zero, "eq"), b.Compare(y, zero, "ge")});
  c.Contribute(1, b.Mul(g, b.Mul(c.result(), b.Log(b.Select(vanishes, one, x)))));
}

// The gradient of x - q y, where q is x / y rounded to an integer: dx = g, dy = -g q.
void RestVjp(VjpContext& c) {
  Builder& b = c.b();
  c.Contribute(0, c.grad());
  // x / y itself may round to the next integer. (x - result) / y is close to q, and rounding it gives q.
  const Value q = b.Unary("round", b.Div(b.Sub(c.operand(0), c.result()), c.operand(1)));
  c.Contribute(1, b.Neg(b.Mul(c.grad(), q)));
}

// The domain in which x / y, rounded by `whole`, is the same number for all x and y, even with an inexact quotient.
OpDef::DomainFn OneQuotient(double (*whole)(double)) {
  return [whole](std::span<const ValueRange> operands) {
    const ValueRange &x = operands[0], &y = operands[1];
    if (y.low < 0.2) return false;
    const double low = std::min(x.low / y.low, x.low / y.high), high = std::max(x.high / y.low, x.high / y.high);
    return whole(low - 0.05) == whole(high + 0.05);
  };
}

}  // namespace

//===-- add -------------------------------------------------------------------------------------------------------===//
const OpDef& AddOp() {
  static const OpDef def =
      Arithmetic<Add>("add", "x + y.", ops::Linearity::kAll).Trait(kCommutative).Vjp([](VjpContext& c) {
        c.Contribute(0, c.grad());
        c.Contribute(1, c.grad());
      });
  return def;
}

//===-- sub -------------------------------------------------------------------------------------------------------===//
const OpDef& SubOp() {
  static const OpDef def = Arithmetic<Sub>("sub", "x - y.", ops::Linearity::kAll).Vjp([](VjpContext& c) {
    c.Contribute(0, c.grad());
    c.Contribute(1, c.b().Neg(c.grad()));
  });
  return def;
}

//===-- mul -------------------------------------------------------------------------------------------------------===//
const OpDef& MulOp() {
  static const OpDef def =
      Arithmetic<Mul>("mul", "x times y.", ops::Linearity::kOne).Trait(kCommutative).Vjp([](VjpContext& c) {
        c.Contribute(0, c.b().Mul(c.grad(), c.operand(1)));
        c.Contribute(1, c.b().Mul(c.grad(), c.operand(0)));
      });
  return def;
}

//===-- div -------------------------------------------------------------------------------------------------------===//
const OpDef& DivOp() {
  static const OpDef def =
      Arithmetic<Div>("div", "x / y. Integers truncate toward zero; dividing them by zero is an error.",
                      ops::Linearity::kFirst)
          .Domain(
              [](std::span<const ValueRange> operands) { return operands[1].low >= 0.2 || operands[1].high <= -0.2; })
          .Trait(kChecksData)
          .ChecksData(RefuseDivisionByZero)
          .Vjp([](VjpContext& c) {  // dx = g / y, dy = -dx (x / y)
            const Value dx = c.b().Div(c.grad(), c.operand(1));
            c.Contribute(0, dx);
            c.Contribute(1, c.b().Neg(c.b().Mul(dx, c.result())));
          });
  return def;
}

//===-- fmod ------------------------------------------------------------------------------------------------------===//
const OpDef& FmodOp() {
  static const OpDef def =
      Arithmetic<Fmod>("fmod",
                       "x - y * q, where q is x / y truncated toward zero. It has the sign of x. NaN where y is 0 or x "
                       "is infinite; for integers, y = 0 is an error.")
          .Trait(kExpensive)
          .Domain(OneQuotient(std::trunc))
          .Trait(kChecksData)
          .ChecksData(RefuseDivisionByZero)
          .Vjp(RestVjp);
  return def;
}

//===-- remainder -------------------------------------------------------------------------------------------------===//
const OpDef& RemainderOp() {
  static const OpDef def =
      Arithmetic<Remainder>("remainder",
                            "x - y * q, where q is x / y rounded down. It has the sign of y. NaN where y is 0 or x is "
                            "infinite; for integers, y = 0 is an error.")
          .Trait(kExpensive)
          .Domain(OneQuotient(std::floor))
          .Trait(kChecksData)
          .ChecksData(RefuseDivisionByZero)
          .Vjp(RestVjp);
  return def;
}

//===-- max -------------------------------------------------------------------------------------------------------===//
const OpDef& MaxOp() {
  static const OpDef def =
      Arithmetic<Maximum>(
          "max", "The larger of x and y; NaN if one is NaN. For equal operands each gets half of the gradient.")
          .Trait(kCommutative)
          .Vjp([](VjpContext& c) {
            c.Contribute(0, WhereAhead(c, c.operand(0), c.operand(1), "gt"));
            c.Contribute(1, WhereAhead(c, c.operand(1), c.operand(0), "gt"));
          });
  return def;
}

//===-- min -------------------------------------------------------------------------------------------------------===//
const OpDef& MinOp() {
  static const OpDef def =
      Arithmetic<Minimum>(
          "min", "The smaller of x and y; NaN if one is NaN. For equal operands each gets half of the gradient.")
          .Trait(kCommutative)
          .Vjp([](VjpContext& c) {
            c.Contribute(0, WhereAhead(c, c.operand(0), c.operand(1), "lt"));
            c.Contribute(1, WhereAhead(c, c.operand(1), c.operand(0), "lt"));
          });
  return def;
}

//===-- pow -------------------------------------------------------------------------------------------------------===//
const OpDef& PowOp() {
  static const OpDef def =
      Arithmetic<Pow>("pow",
                      "x to the power y. For integers, a negative power is truncated toward zero, and a negative power "
                      "of zero is an error.")
          .Trait(kExpensive)
          .F32Error(1)
          .Domain([](std::span<const ValueRange> operands) {
            return operands[0].low >= 0.2 && operands[1].low >= 0 && operands[1].high <= 3;
          })
          .Trait(kChecksData)
          .ChecksData(RefuseDivisionByZero)
          .Precision(PrecisionRule::kFull)
          .Vjp(PowVjp);
  return def;
}

}  // namespace lockstep
