#include "core/tensor.h"

#include <unistd.h>

#include <array>
#include <charconv>
#include <cmath>
#include <cstdlib>
#include <cstring>

namespace lockstep {
namespace {

constexpr size_t kAlignment = 64;  // a cache line, and the widest vector

std::shared_ptr<std::byte> AllocateBytes(size_t size) {
  const size_t rounded = (size + kAlignment - 1) / kAlignment * kAlignment;
  auto* bytes = static_cast<std::byte*>(std::aligned_alloc(kAlignment, rounded == 0 ? kAlignment : rounded));
  LOCKSTEP_CHECK(bytes != nullptr) << "out of memory for " << size << " bytes";
  return std::shared_ptr<std::byte>(bytes, [](std::byte* p) { std::free(p); });
}

// The shortest decimal text that parses back to the same T.
template <typename T>
std::string FloatToString(T value) {
  if (std::isnan(value)) return "nan";
  if (std::isinf(value)) return value > 0 ? "inf" : "-inf";
  std::array<char, 32> buffer;
  const auto end = std::to_chars(buffer.data(), buffer.data() + buffer.size(), value).ptr;
  std::string text(buffer.data(), end);
  if (text.find_first_of(".e") == std::string::npos) text += ".0";
  return text;
}

template <typename T>
std::string ElementToString(T value) {
  if constexpr (std::is_same_v<T, bool>) return value ? "true" : "false";
  else if constexpr (std::is_integral_v<T>) return std::to_string(value);
  else if constexpr (std::is_same_v<T, double>) return FloatToString(value);
  else return FloatToString(static_cast<float>(value));
}

}  // namespace

std::string DoubleToString(double value) { return FloatToString(value); }

Tensor::Tensor(TensorType type) : type_(std::move(type)), storage_(AllocateBytes(type_.num_bytes())) {
  std::memset(storage_.get(), 0, type_.num_bytes());
}

Tensor Tensor::Full(TensorType type, double value) {
  Tensor tensor(std::move(type));
  DispatchDType(tensor.dtype(), [&](auto tag) {
    using T = typename decltype(tag)::type;
    for (T& element : tensor.mutable_data<T>()) element = ConvertElement<T>(value);
  });
  return tensor;
}

std::byte* Tensor::mutable_bytes() {
  if (storage_.use_count() != 1) {
    auto copy = AllocateBytes(num_bytes());
    std::memcpy(copy.get(), storage_.get(), num_bytes());
    storage_ = std::move(copy);
  }
  return storage_.get();
}

double Tensor::At(int64_t i) const {
  return DispatchDType(dtype(), [&](auto tag) {
    using T = typename decltype(tag)::type;
    return static_cast<double>(data<T>()[static_cast<size_t>(i)]);
  });
}

Tensor Tensor::Reshaped(Shape shape) const {
  LOCKSTEP_CHECK(shape.num_elements() == num_elements()) << type_.ToString() << " to " << shape.ToString();
  Tensor result = *this;
  result.type_.shape = std::move(shape);
  return result;
}

Tensor Tensor::Converted(DType dtype) const {
  Tensor result(TensorType{dtype, shape()});
  DispatchDType(this->dtype(), [&](auto from_tag) {
    using From = typename decltype(from_tag)::type;
    DispatchDType(dtype, [&](auto to_tag) {
      using To = typename decltype(to_tag)::type;
      const auto from = data<From>();
      const auto to = result.mutable_data<To>();
      for (size_t i = 0; i < from.size(); ++i) to[i] = ConvertElement<To>(from[i]);
    });
  });
  return result;
}

bool Tensor::AllElementsEqual() const {
  const size_t size = SizeOf(dtype());
  for (size_t at = size; at < num_bytes(); at += size) {
    if (std::memcmp(bytes(), bytes() + at, size) != 0) return false;
  }
  return true;
}

bool Tensor::operator==(const Tensor& other) const {
  return type_ == other.type_ && std::memcmp(bytes(), other.bytes(), num_bytes()) == 0;
}

std::string Tensor::ToString() const {
  std::string text = "dense<" + type_.ToString() + ":";
  const int64_t count = num_elements() > 1 && AllElementsEqual() ? 1 : num_elements();
  DispatchDType(dtype(), [&](auto tag) {
    using T = typename decltype(tag)::type;
    for (int64_t i = 0; i < count; ++i) text += (i ? ", " : " ") + ElementToString(data<T>()[static_cast<size_t>(i)]);
  });
  return text + ">";
}

absl::Status CheckFitsInMemory(const TensorType& type, std::string_view what) {
  const auto memory = static_cast<size_t>(sysconf(_SC_PHYS_PAGES)) * static_cast<size_t>(sysconf(_SC_PAGESIZE));
  if (IsAddressable(type) && type.num_bytes() <= memory) return absl::OkStatus();
  return ErrorStream(absl::StatusCode::kResourceExhausted)
         << what << " is " << type << ", more than this machine's memory of " << memory << " bytes";
}

std::ostream& operator<<(std::ostream& out, const Tensor& tensor) { return out << tensor.ToString(); }

}  // namespace lockstep
