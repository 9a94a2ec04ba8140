#include "core/dtype.h"

#include <cmath>

namespace lockstep {

std::string_view DTypeName(DType dtype) {
  switch (dtype) {
    case DType::kF64: return "f64";
    case DType::kF32: return "f32";
    case DType::kF16: return "f16";
    case DType::kBF16: return "bf16";
    case DType::kI8: return "i8";
    case DType::kI16: return "i16";
    case DType::kI32: return "i32";
    case DType::kI64: return "i64";
    case DType::kU8: return "u8";
    case DType::kU16: return "u16";
    case DType::kU32: return "u32";
    case DType::kU64: return "u64";
    case DType::kBool: return "bool";
  }
  return "?";
}

std::optional<DType> DTypeFromName(std::string_view name) {
  for (DType dtype : kAllDTypes) {
    if (DTypeName(dtype) == name) return dtype;
  }
  return std::nullopt;
}

size_t SizeOf(DType dtype) {
  return DispatchDType(dtype, [](auto tag) { return sizeof(typename decltype(tag)::type); });
}

bool IsFloat(DType dtype) { return dtype <= DType::kBF16; }
bool IsInteger(DType dtype) { return dtype >= DType::kI8 && dtype <= DType::kU64; }
bool IsSigned(DType dtype) { return dtype <= DType::kI64; }

std::ostream& operator<<(std::ostream& out, DType dtype) { return out << DTypeName(dtype); }

Float16::Float16(float value) {
  const uint32_t f = std::bit_cast<uint32_t>(value);
  const uint32_t sign = (f >> 16) & 0x8000u;
  const float magnitude = std::fabs(value);
  uint32_t half;
  if (std::isnan(value)) {
    half = 0x7e00u;
  } else if (magnitude >= 65520.0f) {  // rounds to infinity
    half = 0x7c00u;
  } else if (magnitude < 6.103515625e-05f) {  // subnormal: adding 0.5 lets the hardware round at the last half bit
    half = std::bit_cast<uint32_t>(magnitude + 0.5f) - 0x3f000000u;
  } else {
    const uint32_t m = f & 0x7fffffffu;
    half = (m + 0xc8000fffu + ((m >> 13) & 1u)) >> 13;  // rebias the exponent by -112, round to nearest even
  }
  bits = static_cast<uint16_t>(sign | half);
}

Float16::operator float() const {
  const uint32_t sign = (bits & 0x8000u) << 16;
  const uint32_t exponent = (bits >> 10) & 0x1fu;
  const uint32_t mantissa = bits & 0x3ffu;
  if (exponent == 0) return (sign ? -1.0f : 1.0f) * std::ldexp(static_cast<float>(mantissa), -24);
  if (exponent == 31) return std::bit_cast<float>(sign | 0x7f800000u | (mantissa << 13));
  return std::bit_cast<float>(sign | ((exponent + 112) << 23) | (mantissa << 13));
}

BFloat16::BFloat16(float value) {
  const uint32_t f = std::bit_cast<uint32_t>(value);
  bits = std::isnan(value) ? static_cast<uint16_t>(0x7fc0u)
                           : static_cast<uint16_t>((f + 0x7fffu + ((f >> 16) & 1u)) >> 16);
}

}  // namespace lockstep
