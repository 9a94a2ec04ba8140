#include "verify/exact_tensor.h"

#include <algorithm>
#include <bit>

namespace lockstep::verify {
namespace {

// Names are above the magnitude of numbers that programs write out, such as padding.
constexpr double kFirstName = static_cast<double>(int64_t{1} << 44);

}  // namespace

ExactTensor::ExactTensor(TensorType type) : type_(std::move(type)) {
  if (is_exact()) numbers_ = std::make_shared<std::vector<Exact>>(size());
  else integers_ = Tensor(type_);
}

std::vector<Exact>& ExactTensor::numbers() {
  ForgetConstant();
  if (numbers_ == nullptr) numbers_ = std::make_shared<std::vector<Exact>>();
  if (numbers_.use_count() > 1) numbers_ = std::make_shared<std::vector<Exact>>(*numbers_);
  return *numbers_;
}

const std::vector<Exact>& ExactTensor::numbers() const {
  static const std::vector<Exact> none;
  return numbers_ == nullptr ? none : *numbers_;
}

bool ExactTensor::SharesElements(const ExactTensor& other) const {
  if (type_ != other.type_ || (constant_ == nullptr) != (other.constant_ == nullptr)) return false;
  return is_exact() ? numbers_ == other.numbers_ : integers_.bytes() == other.integers_.bytes();
}

ExactTensor ExactTensor::Of(const Tensor& tensor) {
  ExactTensor exact(tensor.type());
  if (!exact.is_exact()) {
    exact.integers_ = tensor;
    return exact;
  }
  const Tensor wide = tensor.Converted(DType::kF64);
  const std::span<const double> values = wide.data<double>();
  std::vector<Exact>& numbers = exact.numbers();
  for (size_t i = 0; i < numbers.size(); ++i) {
    const bool is_again = i > 0 && std::bit_cast<uint64_t>(values[i]) == std::bit_cast<uint64_t>(values[i - 1]);
    numbers[i] = is_again ? numbers[i - 1] : Exact::Of(values[i], tensor.dtype());
  }
  return exact;
}

ExactTensor ExactTensor::OfConstant(Tensor tensor) {
  ExactTensor exact = Of(tensor);
  exact.constant_ = std::make_shared<const Tensor>(std::move(tensor));
  return exact;
}

ExactTensor ExactTensor::Part(const TensorType& type, int64_t position) const {
  ExactTensor part(type);
  const size_t size = part.size(), first = static_cast<size_t>(position) * size, width = SizeOf(type.dtype);
  if (part.is_exact())
    std::copy_n(numbers().begin() + static_cast<std::ptrdiff_t>(first), size, part.numbers().begin());
  else std::copy_n(integers_.bytes() + first * width, size * width, part.integers_.mutable_bytes());
  return part;
}

void ExactTensor::SetPart(int64_t position, const ExactTensor& part) {
  const size_t size = part.size(), first = static_cast<size_t>(position) * size, width = SizeOf(part.dtype());
  if (part.is_exact())
    std::copy_n(part.numbers().begin(), size, numbers().begin() + static_cast<std::ptrdiff_t>(first));
  else std::copy_n(part.integers_.bytes(), size * width, integers_.mutable_bytes() + first * width);
}

std::optional<size_t> ExactTensor::FirstDifference(const ExactTensor& other) const {
  for (size_t i = 0; i < size(); ++i) {
    const bool equal = is_exact()
                           ? numbers()[i] == other.numbers()[i]
                           : integers_.At(static_cast<int64_t>(i)) == other.integers_.At(static_cast<int64_t>(i));
    if (!equal) return i;
  }
  return std::nullopt;
}

Tensor Names::Of(const ExactTensor& operand) {
  if (!operand.is_exact()) return operand.integers();
  operands_.push_back(&operand);
  first_.push_back(next_);
  Tensor names({DType::kF64, operand.shape()});
  for (double& name : names.mutable_data<double>()) name = static_cast<double>(next_++);
  return names;
}

Tensor Names::ForResult(const TensorType& type) {
  return Tensor(IsExact(type.dtype) ? TensorType{DType::kF64, type.shape} : type);
}

ExactTensor Names::Resolve(const Tensor& moved, const TensorType& type) const {
  ExactTensor result(type);
  if (!result.is_exact()) {
    result.integers() = moved;
    return result;
  }
  const std::span<const double> names = moved.data<double>();
  for (size_t i = 0; i < names.size(); ++i) {
    if (!(names[i] >= kFirstName && names[i] < static_cast<double>(next_))) {
      result.numbers()[i] = Exact::Of(names[i], DType::kF64);
      continue;
    }
    const auto name = static_cast<int64_t>(names[i]);
    const size_t operand =
        static_cast<size_t>(std::upper_bound(first_.begin(), first_.end(), name) - first_.begin()) - 1;
    result.numbers()[i] = operands_[operand]->numbers()[static_cast<size_t>(name - first_[operand])];
  }
  return result;
}

}  // namespace lockstep::verify
