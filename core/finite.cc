#include "core/finite.h"

#include <algorithm>
#include <cmath>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <limits>

#include "core/shape.h"
#include "core/tensor.h"

namespace lockstep {
namespace {

// Returns whether some element has an exponent of ones only. `T` is the unsigned integer of the element's size.
template <typename T>
bool HasExponent(const std::byte* data, size_t bytes, T exponent) {
  T found = 0;
  for (size_t i = 0; i + sizeof(T) <= bytes; i += sizeof(T)) {
    T bits;
    std::memcpy(&bits, data + i, sizeof(T));
    found |= static_cast<T>((bits & exponent) == exponent);
  }
  return found != 0;
}

template <typename T>
void Count(const std::byte* data, ElementCounts& counts) {
  double least = std::numeric_limits<double>::infinity(), most = -least;
  for (int64_t i = 0; i < counts.elements; ++i) {
    T element;
    std::memcpy(&element, data + static_cast<size_t>(i) * sizeof(T), sizeof(T));
    const auto value = static_cast<double>(element);
    if (std::isnan(value)) {
      if (counts.nans++ == 0) counts.first = i;
    } else if (std::isinf(value)) {
      if (counts.first < 0) counts.first = i;
      ++counts.infinities;
    } else {
      least = std::min(least, value);
      most = std::max(most, value);
    }
  }
  if (least <= most) {
    counts.least = least;
    counts.most = most;
  }
}

template <typename T>
std::vector<bool> Each(const std::byte* data, size_t bytes, T exponent) {
  std::vector<bool> found(bytes / sizeof(T));
  for (size_t i = 0; i < found.size(); ++i) found[i] = HasExponent<T>(data + i * sizeof(T), sizeof(T), exponent);
  return found;
}

// Calls f with a value of the unsigned integer of the element's size: its bits of the exponent. Integers have none.
template <typename F>
auto WithExponent(DType dtype, F f) {
  switch (dtype) {
    case DType::kF64: return f(uint64_t{0x7ff0000000000000});
    case DType::kF32: return f(uint32_t{0x7f800000});
    case DType::kF16: return f(uint16_t{0x7c00});
    case DType::kBF16: return f(uint16_t{0x7f80});
    default: return decltype(f(uint8_t{0})){};
  }
}

// Six digits of a number.
std::string Rounded(double value) {
  char text[32];
  std::snprintf(text, sizeof(text), "%.6g", value);
  return DoubleToString(std::strtod(text, nullptr));
}

}  // namespace

ElementCounts CountElements(DType dtype, const std::byte* data, size_t bytes) {
  ElementCounts counts;
  counts.elements = static_cast<int64_t>(bytes / SizeOf(dtype));
  switch (dtype) {
    case DType::kF64: Count<double>(data, counts); break;
    case DType::kF32: Count<float>(data, counts); break;
    case DType::kF16: Count<Float16>(data, counts); break;
    case DType::kBF16: Count<BFloat16>(data, counts); break;
    default: break;
  }
  return counts;
}

std::vector<bool> NonFiniteElements(DType dtype, const std::byte* data, size_t bytes) {
  return WithExponent(dtype, [&](auto exponent) { return Each(data, bytes, exponent); });
}

bool AllFinite(DType dtype, const std::byte* data, size_t bytes) {
  return !WithExponent(dtype, [&](auto exponent) { return HasExponent(data, bytes, exponent); });
}

std::string ElementCounts::ToString(const std::vector<int64_t>& index) const {
  const std::string of = " of " + std::to_string(elements);
  const std::string range = Rounded(least) + " to " + Rounded(most);
  if (is_finite()) return range;
  std::string text;
  if (nans > 0) text += std::to_string(nans) + " NaN";
  if (infinities > 0) text += (text.empty() ? "" : " and ") + std::to_string(infinities) + " infinite";
  const bool has_others = elements > nans + infinities;
  const std::string where = index.empty() ? "" : ", first at " + ListToString(index);
  return text + of + where + (has_others ? ", the others " + range : "");
}

}  // namespace lockstep
