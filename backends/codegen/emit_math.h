// Code for the transcendental functions of f32, on scalars or vectors alike. Polynomials, so that a loop has one piece
// of code for all its elements: every lane of every width has the same bits, and there is no call in a loop.
// Infinities, NaN, signed zeros and denormals come out as in libm. The bounds of the errors are at the functions, in
// emit_math.cc, emit_trigonometry.cc, emit_inverse.cc, emit_hyperbolic.cc and emit_power.cc; loop_compiler_test.cc
// tests them.

#pragma once

#include "llvm/IR/IRBuilder.h"

namespace lockstep {

class MathEmitter {
 public:
  // `has_fma`: the target multiplies and adds with one rounding, in hardware.
  MathEmitter(llvm::IRBuilderBase& builder, bool has_fma) : b_(builder), has_fma_(has_fma) {}

  llvm::Value* Exp(llvm::Value* x);
  llvm::Value* Log(llvm::Value* x);
  llvm::Value* Log1p(llvm::Value* x);
  llvm::Value* Tanh(llvm::Value* x);
  llvm::Value* Sigmoid(llvm::Value* x);
  llvm::Value* Erf(llvm::Value* x);
  llvm::Value* Sin(llvm::Value* x);
  llvm::Value* Cos(llvm::Value* x);
  llvm::Value* Tan(llvm::Value* x);
  llvm::Value* Asin(llvm::Value* x);
  llvm::Value* Acos(llvm::Value* x);
  llvm::Value* Atan(llvm::Value* x);
  llvm::Value* Sinh(llvm::Value* x);
  llvm::Value* Cosh(llvm::Value* x);
  llvm::Value* Asinh(llvm::Value* x);
  llvm::Value* Acosh(llvm::Value* x);
  llvm::Value* Atanh(llvm::Value* x);
  llvm::Value* Pow(llvm::Value* x, llvm::Value* y);
  llvm::Value* Fmod(llvm::Value* x, llvm::Value* y);

 private:
  // x = n ln 2 + r with whole n and |r| <= ln(2) / 2; expm1(r) is tail + r.
  struct Reduced {
    llvm::Value *n, *r, *tail;
  };
  Reduced Reduce(llvm::Value* x);
  llvm::Value* PowerOfTwo(llvm::Value* n);  // 2^n for whole n from -126 to 127, given as an integer

  // |x| = (quarter + part) pi / 2 with |part| < 0.57: sine and cosine of part pi / 2, in f64; the whole number of
  // quarters, of which the two lowest bits are right; the sign bit of x.
  struct Angle {
    llvm::Value *sin, *cos, *quarter, *sign;
  };
  Angle ReduceAngle(llvm::Value* x);
  // Of the table of emit_trigonometry.cc.
  llvm::Value* QuartersPart(llvm::Value* exponent, int part);
  // An f64 rounded to `type`, its sign flipped where `sign` has the highest bit.
  llvm::Value* Signed(llvm::Value* magnitude, llvm::Value* sign, llvm::Type* type);
  llvm::Value* IsOdd(llvm::Value* whole);

  // --- emit_inverse.cc
  struct ArcSine {
    llvm::Value *angle, *is_far;  // in f64, and whether it is half of what |x| is short of pi / 2
  };
  ArcSine ReduceArcSine(llvm::Value* x);

  // --- emit_hyperbolic.cc
  llvm::Value* Widened(llvm::Value* x);   // f32 to f64
  llvm::Value* Narrowed(llvm::Value* x);  // and back
  llvm::Value* WithSignOf(llvm::Value* x, llvm::Value* magnitude);
  // Of an f64 x = n ln 2 + r, |x| up to 700, with |r| <= ln(2) / 2: cosh(r), sinh(r), 2^n, 2^-n. NaN gives NaN.
  struct Exponential {
    llvm::Value *cosh, *sinh, *up, *down;
  };
  Exponential WideExp(llvm::Value* x);
  Exponential ReduceHyperbolic(llvm::Value* x);
  // The natural logarithm in f64 of a normal number above 0; of anything else, some number.
  llvm::Value* WideLog(llvm::Value* x);
  llvm::Value* CubicIfSmall(llvm::Value* x, double factor, llvm::Value* other);

  llvm::Value* Real(llvm::Value* like, double value);
  llvm::Value* Whole(llvm::Value* like, int64_t value);  // of like's type, or of as many i32 if that is of floats
  llvm::Type* IntegersLike(llvm::Value* x);
  llvm::Value* MulAdd(llvm::Value* x, llvm::Value* y, llvm::Value* z);  // x * y + z
  // c[0] + c[1] x + c[2] x^2 + ...
  llvm::Value* Polynomial(llvm::Value* x, llvm::ArrayRef<double> c);

  llvm::IRBuilderBase& b_;
  bool has_fma_;
};

}  // namespace lockstep
