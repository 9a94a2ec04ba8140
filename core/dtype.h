// The element types of tensors, their C++ types, and a dispatch from a DType to its C++ type. Plain values; any thread.

#pragma once

#include <bit>
#include <cstddef>
#include <cstdint>
#include <optional>
#include <ostream>
#include <string_view>
#include <type_traits>

#include "core/check.h"

namespace lockstep {

enum class DType : uint8_t { kF64, kF32, kF16, kBF16, kI8, kI16, kI32, kI64, kU8, kU16, kU32, kU64, kBool };

inline constexpr DType kAllDTypes[] = {DType::kF64, DType::kF32, DType::kF16, DType::kBF16, DType::kI8,
                                       DType::kI16, DType::kI32, DType::kI64, DType::kU8,   DType::kU16,
                                       DType::kU32, DType::kU64, DType::kBool};

// The name in the text form: "f32", "bf16", "i64", "bool".
std::string_view DTypeName(DType dtype);
std::optional<DType> DTypeFromName(std::string_view name);

// Bytes of one element. A bool takes one byte that holds 0 or 1.
size_t SizeOf(DType dtype);

bool IsFloat(DType dtype);
bool IsInteger(DType dtype);  // signed or unsigned, not bool
bool IsSigned(DType dtype);   // floats and i8 to i64

std::ostream& operator<<(std::ostream& out, DType dtype);

// IEEE binary16 and bfloat16: storage with round-to-nearest-even conversion; arithmetic happens in float.
struct Float16 {
  uint16_t bits = 0;
  Float16() = default;
  explicit Float16(float value);
  operator float() const;  // NOLINT: implicit by intent, so that templates for float also compile for it
};

struct BFloat16 {
  uint16_t bits = 0;
  BFloat16() = default;
  explicit BFloat16(float value);
  operator float() const { return std::bit_cast<float>(static_cast<uint32_t>(bits) << 16); }  // NOLINT
};

template <typename T>
struct TypeTag {
  using type = T;
};

// The DType of a C++ element type, at compile time.
template <typename T>
constexpr DType DTypeOf() {
  if constexpr (std::is_same_v<T, double>) return DType::kF64;
  else if constexpr (std::is_same_v<T, float>) return DType::kF32;
  else if constexpr (std::is_same_v<T, Float16>) return DType::kF16;
  else if constexpr (std::is_same_v<T, BFloat16>) return DType::kBF16;
  else if constexpr (std::is_same_v<T, int8_t>) return DType::kI8;
  else if constexpr (std::is_same_v<T, int16_t>) return DType::kI16;
  else if constexpr (std::is_same_v<T, int32_t>) return DType::kI32;
  else if constexpr (std::is_same_v<T, int64_t>) return DType::kI64;
  else if constexpr (std::is_same_v<T, uint8_t>) return DType::kU8;
  else if constexpr (std::is_same_v<T, uint16_t>) return DType::kU16;
  else if constexpr (std::is_same_v<T, uint32_t>) return DType::kU32;
  else if constexpr (std::is_same_v<T, uint64_t>) return DType::kU64;
  else {
    static_assert(std::is_same_v<T, bool>, "not an element type");
    return DType::kBool;
  }
}

// Calls f(TypeTag<T>()) with the C++ type T of `dtype` and returns the result.
template <typename F>
decltype(auto) DispatchDType(DType dtype, F&& f) {
  switch (dtype) {
    case DType::kF64: return f(TypeTag<double>());
    case DType::kF32: return f(TypeTag<float>());
    case DType::kF16: return f(TypeTag<Float16>());
    case DType::kBF16: return f(TypeTag<BFloat16>());
    case DType::kI8: return f(TypeTag<int8_t>());
    case DType::kI16: return f(TypeTag<int16_t>());
    case DType::kI32: return f(TypeTag<int32_t>());
    case DType::kI64: return f(TypeTag<int64_t>());
    case DType::kU8: return f(TypeTag<uint8_t>());
    case DType::kU16: return f(TypeTag<uint16_t>());
    case DType::kU32: return f(TypeTag<uint32_t>());
    case DType::kU64: return f(TypeTag<uint64_t>());
    case DType::kBool: return f(TypeTag<bool>());
  }
  LOCKSTEP_CHECK(false) << "dtype " << static_cast<int>(dtype);
  __builtin_unreachable();
}

// The type in which a reference computation of T accumulates: double for floats, a 64-bit integer for integers and
// bool.
template <typename T>
using Accumulator =
    std::conditional_t<std::is_floating_point_v<T> || std::is_same_v<T, Float16> || std::is_same_v<T, BFloat16>, double,
                       std::conditional_t<std::is_unsigned_v<T> && !std::is_same_v<T, bool>, uint64_t, int64_t>>;

}  // namespace lockstep
