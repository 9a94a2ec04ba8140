#include "test/fake_cuda/elements.h"

#include <cmath>
#include <cstring>

namespace lockstep::cuda {

double ReadElement(DType dtype, const std::byte* data, int64_t at) {
  const auto read = [&](auto tag) {
    decltype(tag) value;
    std::memcpy(&value, data + at * static_cast<int64_t>(sizeof(value)), sizeof(value));
    return static_cast<double>(value);
  };
  switch (dtype) {
    case DType::kF64: return read(double());
    case DType::kF16: return read(Float16());
    case DType::kBF16: return read(BFloat16());
    default: return read(float());
  }
}

void WriteElement(DType dtype, std::byte* data, int64_t at, double x) {
  const auto write = [&](auto value) {
    std::memcpy(data + at * static_cast<int64_t>(sizeof(value)), &value, sizeof(value));
  };
  switch (dtype) {
    case DType::kF64: return write(x);
    case DType::kF16: return write(Float16(static_cast<float>(x)));
    case DType::kBF16: return write(BFloat16(static_cast<float>(x)));
    default: return write(static_cast<float>(x));
  }
}

double ToTf32(double x) {
  auto value = static_cast<float>(x);
  uint32_t bits;
  std::memcpy(&bits, &value, sizeof(bits));
  bits = (bits + 0x1000) & 0xffffe000;
  std::memcpy(&value, &bits, sizeof(bits));
  return std::isfinite(x) ? value : x;
}

}  // namespace lockstep::cuda
