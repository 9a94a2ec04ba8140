// Arrays at the Python edge, NumPy's and whatever speaks DLPack, in and out without copies; and text.

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

// An array of the CPU in row-major order; one of another order is copied by the conversion to this type.
struct InputArray {
  nb::ndarray<nb::ro, nb::c_contig, nb::device::cpu> array;
  bool bits_are_bfloat16 = false;  // NumPy has no bfloat16 that others understand: the array is its bits, as u16
};

// The type and the memory of `array`, which must outlive the reference. Raises lockstep.Error naming `what` for a dtype
// that we do not have.
ConstTensorRef BorrowArray(const InputArray& array, const std::string& what);

// `handle` as an array; raises lockstep.Error naming `what` if it is none. With `wanted`, the type that it should have,
// one of a narrower dtype of the same kind, such as i32 for i64, is converted, and of another dtype is an error that
// says how to convert it; the shape is not looked at.
InputArray CastToArray(nb::handle handle, const std::string& what, const TensorType* wanted = nullptr);

// `handle` as text; raises lockstep.Error naming `what` if it is no string, or one with NUL or a lone surrogate.
std::string TextOf(nb::handle handle, const std::string& what);

Tensor CopyArray(const InputArray& array, const std::string& what);

// A NumPy array in row-major order, whose memory is used where it is.
struct ArrayInPlace {
  nb::object array;
  InputArray memory;
  TensorRef ref;

  bool IsWritable() const;  // which its owner may change
};

// Raises lockstep.Error naming `what` if `handle` is none.
ArrayInPlace CastToArrayInPlace(nb::handle handle, const std::string& what);

// Memory for a result, which becomes a NumPy array without a copy, or is that of an array that the caller has.
class OutputArray {
 public:
  explicit OutputArray(TensorType type);
  explicit OutputArray(const ArrayInPlace& given) : given_(given) {}
  TensorRef ref() const { return given_ ? given_->ref : TensorRef{type_, memory_.get()}; }
  nb::object Release();  // a NumPy array that owns the memory, or the caller's

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
