// Conversion of arrays (NumPy or DLPack) and texts between Python and C++, without copies of arrays.

#pragma once

#include <nanobind/nanobind.h>
#include <nanobind/ndarray.h>

#include <memory>
#include <optional>
#include <string>

#include "core/tensor.h"
#include "runtime/execution/executor.h"

namespace lockstep::python {

namespace nb = nanobind;

// A row-major array in the CPU's memory. The conversion to this type copies arrays in another order.
struct InputArray {
  nb::ndarray<nb::ro, nb::c_contig, nb::device::cpu> array;
  bool bits_are_bfloat16 = false;  // the array has the bits as u16, because NumPy has no standard bfloat16
};

// Returns the type and the memory of `array`, which must outlive the result. Raises lockstep.Error with the name `what`
// if lockstep does not have the dtype.
ConstTensorRef BorrowArray(const InputArray& array, const std::string& what);

// Converts `handle` to an array. Raises lockstep.Error with the name `what` if it is not one. If the type `wanted` is
// given, an array of a narrower dtype of the same kind, such as i32 for i64, is converted. Another dtype is an error
// that says how to convert it. The shape is not checked.
InputArray CastToArray(nb::handle handle, const std::string& what, const TensorType* wanted = nullptr);

// Converts `handle` to text. Raises lockstep.Error with the name `what` if it is not a string, or has NUL or a lone
// surrogate.
std::string TextOf(nb::handle handle, const std::string& what);

Tensor CopyArray(const InputArray& array, const std::string& what);

// A row-major NumPy array whose memory is used in place.
struct ArrayInPlace {
  nb::object array;
  InputArray memory;
  TensorRef ref;

  bool IsWritable() const;  // the array's owner may change this
};

// Raises lockstep.Error with the name `what` if `handle` is not such an array.
ArrayInPlace CastToArrayInPlace(nb::handle handle, const std::string& what);

// The memory of a result. It becomes a NumPy array without a copy, or is the memory of an array of the caller.
class OutputArray {
 public:
  explicit OutputArray(TensorType type);
  explicit OutputArray(const ArrayInPlace& given) : given_(given) {}
  TensorRef ref() const { return given_ ? given_->ref : TensorRef{type_, memory_.get()}; }
  nb::object Release();  // returns a NumPy array that owns the memory, or the caller's array

 private:
  struct Free {
    void operator()(std::byte* memory) const { std::free(memory); }
  };
  TensorType type_;
  std::unique_ptr<std::byte, Free> memory_;
  std::optional<ArrayInPlace> given_;
};

nb::object ToNumpy(const Tensor& tensor);

}  // namespace lockstep::python
