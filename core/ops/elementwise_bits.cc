// Elementwise ops on bits: logical ops, which are bitwise for integers; shifts; and the bitcast to another dtype.

#include <cstring>

#include "core/builder.h"
#include "core/ops/op_list.h"
#include "core/ops/rules.h"

namespace lockstep {
namespace {

constexpr char kDiscrete[] = "its operands are truth values or integers";

// Calls f(tag) with the C++ type of `dtype`, which is not a float: inference checks that.
template <typename F>
void DispatchBits(DType dtype, const F& f) {
  DispatchDType(dtype, [&](auto tag) {
    using T = typename decltype(tag)::type;
    if constexpr (std::is_integral_v<T>) f(tag);
    else LOCKSTEP_CHECK(false) << "bits of " << dtype;
  });
}

// The common part of not, and, or and xor.
OpDef Logic(const char* name, const char* doc) {
  return OpDef(name)
      .Doc(doc)
      .Trait(kElementwise)
      .Precision(PrecisionRule::kFollows)
      .Constraint("C1", "the operands are bool or integers, of the same type")
      .Infer([](InferContext& c) -> absl::Status {
        RETURN_IF_ERROR(ops::CheckSameTypes(c, "C1"));
        if (IsFloat(c.dtype(0))) return c.Error("C1") << "operand " << c.operand(0) << ", expected bool or integers";
        return c.SetResult(c.operand(0));
      })
      .NoGradient(kDiscrete)
      .Place([](PlacementContext& c) { ops::PlaceElementwise(c); });
}

template <typename F>
absl::Status EvalBits(EvalContext& c) {
  DispatchBits(c.result().dtype(), [&](auto tag) {
    using T = typename decltype(tag)::type;
    const auto x = c.operand(0).data<T>(), y = c.operand(1).data<T>();
    const auto out = c.result().mutable_data<T>();
    for (size_t i = 0; i < out.size(); ++i) out[i] = F::Of(x[i], y[i]);
  });
  return absl::OkStatus();
}

struct And {
  template <typename T>
  static T Of(T x, T y) {
    return static_cast<T>(x & y);
  }
};

struct Or {
  template <typename T>
  static T Of(T x, T y) {
    return static_cast<T>(x | y);
  }
};

struct Xor {
  template <typename T>
  static T Of(T x, T y) {
    return static_cast<T>(x ^ y);
  }
};

template <typename F>
OpDef BinaryLogic(const char* name, const char* doc) {
  return Logic(name, doc).Operand("x").Operand("y").Trait(kCommutative).Eval(EvalBits<F>);
}

absl::Status EvalNot(EvalContext& c) {
  DispatchBits(c.result().dtype(), [&](auto tag) {
    using T = typename decltype(tag)::type;
    const auto x = c.operand(0).data<T>();
    const auto out = c.result().mutable_data<T>();
    for (size_t i = 0; i < out.size(); ++i) {
      if constexpr (std::is_same_v<T, bool>) out[i] = !x[i];
      else out[i] = static_cast<T>(~x[i]);
    }
  });
  return absl::OkStatus();
}

// True if `bits` is at least 0 and less than the number of bits of T.
template <typename T>
bool IsWithin(T bits) {
  return static_cast<uint64_t>(bits) < sizeof(T) * 8;
}

struct ShiftLeft {
  template <typename T>
  static T Of(T x, T y) {
    return IsWithin(y) ? static_cast<T>(static_cast<uint64_t>(x) << static_cast<uint64_t>(y)) : T(0);
  }
};

struct ShiftRight {
  template <typename T>
  static T Of(T x, T y) {
    if (IsWithin(y)) return static_cast<T>(x >> y);
    return x < T(0) ? static_cast<T>(-1) : T(0);
  }
};

template <typename F>
OpDef Shift(const char* name, const char* doc) {
  return OpDef(name)
      .Doc(doc)
      .Operand("x")
      .Operand("y")
      .Trait(kElementwise)
      .Precision(PrecisionRule::kFollows)
      .Constraint("C1", "x and y have the same type")
      .Constraint("C2", "x and y are integers")
      .Infer([](InferContext& c) -> absl::Status {
        RETURN_IF_ERROR(ops::CheckSameTypes(c, "C1"));
        if (!IsInteger(c.dtype(0))) return c.Error("C2") << "operand " << c.operand(0) << ", expected integers";
        return c.SetResult(c.operand(0));
      })
      .Eval([](EvalContext& c) -> absl::Status {
        DispatchBits(c.result().dtype(), [&](auto tag) {
          using T = typename decltype(tag)::type;
          if constexpr (std::is_same_v<T, bool>) {
            LOCKSTEP_CHECK(false) << c.op().name() << " of bool";  // (C2)
          } else {
            const auto x = c.operand(0).data<T>(), y = c.operand(1).data<T>();
            const auto out = c.result().mutable_data<T>();
            for (size_t i = 0; i < out.size(); ++i) out[i] = F::Of(x[i], y[i]);
          }
        });
        return absl::OkStatus();
      })
      .NoGradient(kDiscrete)
      .Place([](PlacementContext& c) { ops::PlaceElementwise(c); });
}

absl::Status InferBitcast(InferContext& c) {
  const DType from = c.dtype(0), to = c.attr<DType>("dtype");
  if (SizeOf(from) != SizeOf(to)) {
    return c.Error("C1") << "operand " << c.operand(0) << " has elements of " << SizeOf(from) << " bytes, dtype " << to
                         << " of " << SizeOf(to);
  }
  if (to == DType::kBool && from != DType::kBool)
    return c.Error("C2") << "dtype bool of operand " << c.operand(0) << ", whose bytes need not be 0 or 1";
  return c.SetResult(to, c.shape(0));
}

}  // namespace

//===-- not -------------------------------------------------------------------------------------------------------===//
const OpDef& NotOp() {
  static const OpDef def =
      Logic("not", "True where x is false; bitwise for integers.").Operand("x").Trait(kInvolution).Eval(EvalNot);
  return def;
}

//===-- and -------------------------------------------------------------------------------------------------------===//
const OpDef& AndOp() {
  static const OpDef def = BinaryLogic<And>("and", "True where x and y are true; bitwise for integers.");
  return def;
}

//===-- or --------------------------------------------------------------------------------------------------------===//
const OpDef& OrOp() {
  static const OpDef def = BinaryLogic<Or>("or", "True where x or y is true; bitwise for integers.");
  return def;
}

//===-- xor -------------------------------------------------------------------------------------------------------===//
const OpDef& XorOp() {
  static const OpDef def = BinaryLogic<Xor>("xor", "True where exactly one of x and y is true; bitwise for integers.");
  return def;
}

//===-- shift_left ------------------------------------------------------------------------------------------------===//
const OpDef& ShiftLeftOp() {
  static const OpDef def = Shift<ShiftLeft>("shift_left",
                                            "x shifted left by y bits. Bits beyond the highest are lost. 0 where y is "
                                            "negative or at least the number of bits.");
  return def;
}

//===-- shift_right -----------------------------------------------------------------------------------------------===//
const OpDef& ShiftRightOp() {
  static const OpDef def = Shift<ShiftRight>(
      "shift_right",
      "x shifted right by y bits. The new high bits are zeros, or copies of the sign bit if x is signed. All bits are "
      "new where y is negative or at least the number of bits.");
  return def;
}

//===-- bitcast ---------------------------------------------------------------------------------------------------===//
const OpDef& BitcastOp() {
  static const OpDef def = OpDef("bitcast")
                               .Doc(
                                   "The bits of x read as another dtype of the same width. A NaN of 16 bits stays a "
                                   "NaN, but its other bits are unspecified.")
                               .Operand("x")
                               .Attr<DType>("dtype", "of the result")
                               .Trait(kElementwise)
                               .Constraint("C1", "the elements of dtype are as wide as those of x")
                               .Constraint("C2", "dtype is not bool, unless x is")
                               .Infer(InferBitcast)
                               .Eval([](EvalContext& c) {
                                 const Tensor& x = c.operand(0);
                                 if (x.num_bytes() > 0)
                                   std::memcpy(c.result().mutable_bytes(), x.bytes(), x.num_bytes());
                                 return absl::OkStatus();
                               })
                               .NoGradient("a number is not a differentiable function of the bits of another")
                               .Place([](PlacementContext& c) { ops::PlaceElementwise(c); });
  return def;
}

}  // namespace lockstep
