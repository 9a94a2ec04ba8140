// Emits code for the transcendental functions of f32, on scalars or vectors. They are polynomials, so that one piece of
// code serves all elements of a loop: lanes of all vector widths compute the same bits, and loops contain no calls.
// Results for infinities, NaN, signed zeros and denormals are those of libm. The error bounds are stated at the
// functions, in emit_math.cc, emit_trigonometry.cc, emit_inverse.cc, emit_hyperbolic.cc and emit_power.cc;
// loop_compiler_test.cc tests them.

#pragma once

#include <limits>

#include "llvm/IR/IRBuilder.h"

namespace lockstep::math {

using llvm::Value;

inline constexpr double kInfinity = std::numeric_limits<double>::infinity();
inline constexpr double kNan = std::numeric_limits<double>::quiet_NaN();

// Instructions that not all targets have. The functions take and return scalars or vectors. Null: the target has no
// such instruction.
struct TargetInstructions {
  using Emit = Value* (*)(llvm::IRBuilderBase& b, Value* x);

  bool has_fma = false;      // multiplies and adds with one rounding
  bool has_maximum = false;  // the maximum and the minimum of two f32, NaN if one of them is NaN
  bool has_division = true;  // of f32; otherwise it is several instructions, of which a reciprocal is the first
  Emit exp2 = nullptr;       // 2^x of an f32, with an error below 2^-22 of the result; denormal results may be 0
  Emit to_bf16 = nullptr;    // rounds an f32 to the nearest bf16, ties to even, and returns its bits as i16
};

class MathEmitter {
 public:
  MathEmitter(llvm::IRBuilderBase& builder, const TargetInstructions& target) : b_(builder), target_(target) {}

  Value* Exp(Value* x);
  Value* Log(Value* x);
  Value* Log1p(Value* x);
  Value* Tanh(Value* x);
  Value* Sigmoid(Value* x);
  Value* Erf(Value* x);
  Value* Sin(Value* x);
  Value* Cos(Value* x);
  Value* Tan(Value* x);
  Value* Asin(Value* x);
  Value* Acos(Value* x);
  Value* Atan(Value* x);
  Value* Sinh(Value* x);
  Value* Cosh(Value* x);
  Value* Asinh(Value* x);
  Value* Acosh(Value* x);
  Value* Atanh(Value* x);
  Value* Pow(Value* x, Value* y);
  Value* Fmod(Value* x, Value* y);
  // Divides f32, scalars or vectors, by one number, with work that is done once for `divisor`. Requires has_fma.
  Value* DivideByOne(Value* x, Value* divisor);

 private:
  // x = n ln 2 + r with integer n and |r| <= ln(2) / 2; expm1(r) is tail + r.
  struct Reduced {
    llvm::Value *n, *r, *tail;
  };
  Reduced Reduce(Value* x);
  Value* PowerOfTwo(Value* n);  // 2^n for an integer n from -126 to 127, of which the lowest 9 bits count
  Value* ExpByExp2(Value* x);

  // Represents |x| = (quarter + part) pi / 2 with |part| < 0.57: sine and cosine of part pi / 2, in f64; the integer
  // `quarter`, of which only the two lowest bits are valid; the sign bit of x.
  struct Angle {
    llvm::Value *sin, *cos, *quarter, *sign;
  };
  Angle ReduceAngle(Value* x);
  // Reads the table of emit_trigonometry.cc.
  Value* QuartersPart(Value* exponent, int part);
  // Rounds an f64 to `type`, and flips its sign if the highest bit of `sign` is set.
  Value* Signed(Value* magnitude, Value* sign, llvm::Type* type);
  Value* IsOdd(Value* whole);

  // --- emit_inverse.cc
  struct ArcSine {
    llvm::Value *angle, *is_far;  // in f64; true if the result is pi / 2 - 2 angle
  };
  ArcSine ReduceArcSine(Value* x);

  // --- emit_hyperbolic.cc
  Value* Widened(Value* x);   // f32 to f64
  Value* Narrowed(Value* x);  // and back
  Value* WithSignOf(Value* x, Value* magnitude);
  // For an f64 x = n ln 2 + r with |x| up to 700 and |r| <= ln(2) / 2: cosh(r), sinh(r), 2^n, 2^-n. NaN gives NaN.
  struct Exponential {
    llvm::Value *cosh, *sinh, *up, *down;
  };
  Exponential WideExp(Value* x);
  Exponential ReduceHyperbolic(Value* x);
  // The natural logarithm in f64 of a positive normal number; for other arguments the result is unspecified.
  Value* WideLog(Value* x);
  Value* CubicIfSmall(Value* x, double factor, Value* other);

  Value* Splat(Value* scalar, Value* like);  // with as many lanes as `like`
  Value* Real(Value* like, double value);
  Value* Whole(Value* like, int64_t value);  // an integer of like's type, or, if that is a float type, as many lanes of
                                             // i32
  llvm::Type* IntegersLike(Value* x);
  Value* AtMost(Value* x, double limit);        // for f32; NaN stays NaN
  Value* MulAdd(Value* x, Value* y, Value* z);  // x * y + z
  // c[0] + c[1] x + c[2] x^2 + ...
  Value* Polynomial(Value* x, llvm::ArrayRef<double> c);

  llvm::IRBuilderBase& b_;
  const TargetInstructions target_;
};

}  // namespace lockstep::math
