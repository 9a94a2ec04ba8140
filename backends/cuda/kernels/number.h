// Element types in kernels: the types that they are loaded as, and the rounding of results to them, as in the reference
// meanings of ops (ConvertElement of core/tensor.h).

#pragma once

#include <stdint.h>

#include "backends/cuda/kernels/thread.h"

namespace lockstep::cuda {

// Storage of 16-bit floats.
struct F16 {
  uint16_t bits;
};
struct BF16 {
  uint16_t bits;
};

template <typename To, typename From>
To BitsAs(From from) {
  static_assert(sizeof(To) == sizeof(From));
  return __builtin_bit_cast(To, from);
}

// Wide: the type for sums and products of elements. Integers use an unsigned type, because signed overflow is
// undefined.
template <typename T>
struct Number {  // for integers
  using Wide = uint64_t;
  using Ordered = T;  // the type in which elements are compared
  static Ordered OrderedOf(T x) { return x; }
  static Wide WideOf(T x) { return static_cast<Wide>(static_cast<int64_t>(x)); }
  static T Of(Wide x) { return static_cast<T>(x); }
};
template <>
struct Number<double> {
  using Wide = double;
  using Ordered = double;
  static Ordered OrderedOf(double x) { return x; }
  static Wide WideOf(double x) { return x; }
  static double Of(Wide x) { return x; }
};
template <>
struct Number<float> {
  using Wide = double;
  using Ordered = float;
  static Ordered OrderedOf(float x) { return x; }
  static Wide WideOf(float x) { return x; }
  static float Of(Wide x) { return static_cast<float>(x); }
};
template <>
struct Number<F16> {
  using Wide = double;
  using Ordered = float;
  static Ordered OrderedOf(F16 x) { return static_cast<float>(BitsAs<_Float16>(x.bits)); }
  static Wide WideOf(F16 x) { return OrderedOf(x); }
  static F16 Of(Wide x) { return {BitsAs<uint16_t>(static_cast<_Float16>(static_cast<float>(x)))}; }
};
template <>
struct Number<BF16> {
  using Wide = double;
  using Ordered = float;
  static Ordered OrderedOf(BF16 x) { return BitsAs<float>(static_cast<uint32_t>(x.bits) << 16); }
  static Wide WideOf(BF16 x) { return OrderedOf(x); }
  static BF16 Of(Wide x) {
    const uint32_t bits = BitsAs<uint32_t>(static_cast<float>(x));
    if ((bits & 0x7fffffff) > 0x7f800000) return {static_cast<uint16_t>(bits >> 16 | 0x40)};  // NaN stays NaN
    return {static_cast<uint16_t>((bits + 0x7fff + (bits >> 16 & 1)) >> 16)};  // to nearest, ties to even
  }
};

template <typename T>
inline constexpr bool kIsSigned = static_cast<T>(-1) < static_cast<T>(0);

// Rows of a list of kernels (thread.h), one for each dtype, which is part of the name: name_f64 and so on.
#define LOCKSTEP_FLOATS(K, name, Args, meets, function) \
  K(name##_f64, Args, meets, function<double>)          \
  K(name##_f32, Args, meets, function<float>)           \
  K(name##_f16, Args, meets, function<F16>)             \
  K(name##_bf16, Args, meets, function<BF16>)
#define LOCKSTEP_NUMBERS(K, name, Args, meets, function) \
  LOCKSTEP_FLOATS(K, name, Args, meets, function)        \
  K(name##_i8, Args, meets, function<int8_t>)            \
  K(name##_i16, Args, meets, function<int16_t>)          \
  K(name##_i32, Args, meets, function<int32_t>)          \
  K(name##_i64, Args, meets, function<int64_t>)          \
  K(name##_u8, Args, meets, function<uint8_t>)           \
  K(name##_u16, Args, meets, function<uint16_t>)         \
  K(name##_u32, Args, meets, function<uint32_t>)         \
  K(name##_u64, Args, meets, function<uint64_t>)

// The unit in which bytes are moved.
struct alignas(16) Unit16 {
  uint64_t halves[2];
};

// Elements that a thread handles together, and the number of them in 16 bytes.
template <typename T, int kCount>
struct alignas(sizeof(T) * kCount) Pack {
  T of[kCount];
};
template <typename T>
inline constexpr int kLanes = sizeof(Unit16) / sizeof(T);

// Load and store a pack, and 16 bytes at once.
template <typename T, int kCount>
Pack<T, kCount> LoadPack(const T* at) {
  if constexpr (sizeof(T) * kCount != sizeof(Unit16)) {
    return *reinterpret_cast<const Pack<T, kCount>*>(at);
  } else {
    const Unit16 unit = *reinterpret_cast<const Unit16*>(at);
    return BitsAs<Pack<T, kCount>>(Unit16{ByValue(unit.halves[0]), ByValue(unit.halves[1])});
  }
}
template <typename T, int kCount>
void StorePack(T* at, const Pack<T, kCount>& pack) {
  if constexpr (sizeof(T) * kCount != sizeof(Unit16)) {
    *reinterpret_cast<Pack<T, kCount>*>(at) = pack;
  } else {
    const auto unit = BitsAs<Unit16>(pack);
    *reinterpret_cast<Unit16*>(at) = {ByValue(unit.halves[0]), ByValue(unit.halves[1])};
  }
}

#define LOCKSTEP_UNITS(K, name, Args, meets, function) \
  K(name##_b1, Args, meets, function<uint8_t>)         \
  K(name##_b2, Args, meets, function<uint16_t>)        \
  K(name##_b4, Args, meets, function<uint32_t>)        \
  K(name##_b8, Args, meets, function<uint64_t>)        \
  K(name##_b16, Args, meets, function<Unit16>)

}  // namespace lockstep::cuda
