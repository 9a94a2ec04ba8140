#include "core/shape.h"

#include <algorithm>

namespace lockstep {

int64_t Shape::num_elements() const {
  int64_t count = 1;
  for (int64_t dim : dims_) count *= dim;
  return count;
}

Shape Shape::WithDim(int64_t dim, int64_t extent) const {
  LOCKSTEP_CHECK(has_dim(dim)) << dim << " of " << ToString();
  Shape result = *this;
  result.dims_[static_cast<size_t>(dim)] = extent;
  return result;
}

Shape Shape::Without(const std::vector<int64_t>& dims) const {
  Shape result;
  for (int64_t i = 0; i < rank(); ++i) {
    if (std::find(dims.begin(), dims.end(), i) == dims.end()) result.dims_.push_back((*this)[i]);
  }
  return result;
}

bool Shape::IsOutermost(int64_t dim) const {
  return std::all_of(dims_.begin(), dims_.begin() + dim, [](int64_t extent) { return extent == 1; });
}

std::vector<int64_t> Shape::Strides() const {
  std::vector<int64_t> strides(dims_.size());
  int64_t stride = 1;
  for (size_t i = dims_.size(); i-- > 0;) {
    strides[i] = stride;
    stride *= dims_[i];
  }
  return strides;
}

std::vector<int64_t> IndexOf(int64_t position, const Shape& shape) {
  std::vector<int64_t> index;
  for (const int64_t stride : position < 0 ? std::vector<int64_t>() : shape.Strides()) {
    index.push_back(position / stride);
    position %= stride;
  }
  return index;
}

std::string Shape::ToString() const {
  std::string text = "[";
  for (size_t i = 0; i < dims_.size(); ++i) text += (i ? "," : "") + std::to_string(dims_[i]);
  return text + "]";
}

std::string TensorType::ToString() const { return std::string(DTypeName(dtype)) + shape.ToString(); }

bool IsAddressable(const TensorType& type) {
  int64_t bytes = static_cast<int64_t>(SizeOf(type.dtype));
  for (int64_t dim : type.shape.dims()) {
    if (__builtin_mul_overflow(bytes, std::max<int64_t>(dim, 1), &bytes) || bytes > (int64_t{1} << 47)) return false;
  }
  return true;
}

std::ostream& operator<<(std::ostream& out, const Shape& shape) { return out << shape.ToString(); }
std::ostream& operator<<(std::ostream& out, const TensorType& type) { return out << type.ToString(); }

std::string ListToString(const std::vector<int64_t>& list) {
  std::string text = "[";
  for (size_t i = 0; i < list.size(); ++i) text += (i ? ", " : "") + std::to_string(list[i]);
  return text + "]";
}

}  // namespace lockstep
