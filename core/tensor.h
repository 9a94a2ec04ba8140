// A dense row-major tensor in host memory, for constants, for the interpreter, and for parameters at the edges of the
// system. Compiled programs use the buffers of runtime/ instead. A Tensor is a value: copies are independent. Any
// thread may read a Tensor; writing needs exclusive use of that copy.

#pragma once

#include <memory>
#include <ostream>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "core/shape.h"
#include "core/status.h"

namespace lockstep {

class Tensor {
 public:
  Tensor() : Tensor(TensorType()) {}  // f32[] of value 0
  explicit Tensor(TensorType type);   // zeros

  template <typename T>
  static Tensor Of(Shape shape, const std::vector<T>& values) {
    Tensor tensor(TensorType{DTypeOf<T>(), std::move(shape)});
    LOCKSTEP_CHECK(static_cast<int64_t>(values.size()) == tensor.num_elements()) << tensor.type().ToString();
    std::span<T> data = tensor.mutable_data<T>();
    for (size_t i = 0; i < values.size(); ++i) data[i] = values[i];
    return tensor;
  }
  // A tensor of `type` with every element `value`, converted to the dtype.
  static Tensor Full(TensorType type, double value);
  static Tensor Scalar(DType dtype, double value) { return Full(TensorType{dtype, Shape()}, value); }

  const TensorType& type() const { return type_; }
  const Shape& shape() const { return type_.shape; }
  DType dtype() const { return type_.dtype; }
  int64_t num_elements() const { return type_.num_elements(); }
  size_t num_bytes() const { return type_.num_bytes(); }

  // The elements. T must be the C++ type of dtype(). mutable_data() and mutable_bytes() copy the storage first if other
  // tensors share it.
  template <typename T>
  std::span<const T> data() const {
    LOCKSTEP_CHECK(DTypeOf<T>() == dtype()) << "data of " << type_.ToString();
    return {reinterpret_cast<const T*>(bytes()), static_cast<size_t>(num_elements())};
  }
  template <typename T>
  std::span<T> mutable_data() {
    LOCKSTEP_CHECK(DTypeOf<T>() == dtype()) << "data of " << type_.ToString();
    return {reinterpret_cast<T*>(mutable_bytes()), static_cast<size_t>(num_elements())};
  }
  const std::byte* bytes() const { return storage_.get(); }
  std::byte* mutable_bytes();

  // Element `i` in row-major order as a double, which is exact except for large 64-bit integers.
  double At(int64_t i) const;

  // The same elements under another shape with as many elements.
  Tensor Reshaped(Shape shape) const;
  // Elements converted to `dtype`, as the op `convert` does.
  Tensor Converted(DType dtype) const;

  bool AllElementsEqual() const;               // bitwise; true for an empty tensor
  bool operator==(const Tensor& other) const;  // same type and same bits

  // "dense<f32[2]: 1.0, 2.5>", or "dense<f32[2,3]: 0.0>" if all elements are equal. Parses back to the same bits,
  // except for the payload of a NaN.
  std::string ToString() const;

 private:
  TensorType type_;
  // Shared, so that cloning a graph does not copy its constants; mutable_bytes() copies storage that is shared.
  std::shared_ptr<std::byte> storage_;
};

std::ostream& operator<<(std::ostream& out, const Tensor& tensor);

// Returns an error that begins with `what` if a tensor of this type is larger than this machine's memory. Running out
// of the free memory cannot be reported as an error.
absl::Status CheckFitsInMemory(const TensorType& type, std::string_view what);

// The conversion of the op `convert`: floats to integers truncate toward zero and saturate, any type to bool is != 0.
template <typename To, typename From>
To ConvertElement(From from);

// The shortest decimal text that parses back to the same double, with a '.' or exponent: "1.0", "0.1", "1e-05", "nan",
// "-inf".
std::string DoubleToString(double value);

}  // namespace lockstep

#include "core/tensor_convert.inc"
