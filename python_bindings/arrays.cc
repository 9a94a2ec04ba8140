#include "python_bindings/arrays.h"

#include <nanobind/stl/string.h>

#include <cstring>

#include "python_bindings/errors.h"

namespace lockstep::python {
namespace {

nb::dlpack::dtype DlpackType(DType dtype) {
  const auto code = [&] {
    if (dtype == DType::kBF16) return nb::dlpack::dtype_code::Bfloat;
    if (dtype == DType::kBool) return nb::dlpack::dtype_code::Bool;
    if (IsFloat(dtype)) return nb::dlpack::dtype_code::Float;
    return IsSigned(dtype) ? nb::dlpack::dtype_code::Int : nb::dlpack::dtype_code::UInt;
  }();
  return {static_cast<uint8_t>(code), static_cast<uint8_t>(8 * SizeOf(dtype)), 1};
}

}  // namespace

ConstTensorRef BorrowArray(const InputArray& input, const std::string& what) {
  const auto& array = input.array;
  std::vector<int64_t> dims;
  for (size_t i = 0; i < array.ndim(); ++i) dims.push_back(static_cast<int64_t>(array.shape(i)));
  if (input.bits_are_bfloat16) return {TensorType{DType::kBF16, Shape(std::move(dims))}, array.data()};
  for (DType dtype : kAllDTypes) {
    if (array.dtype() == DlpackType(dtype)) return {TensorType{dtype, Shape(std::move(dims))}, array.data()};
  }
  ThrowIfError(InvalidArgument() << what << " has a dtype that lockstep does not have (DLPack code "
                                 << int{array.dtype().code} << ", " << int{array.dtype().bits} << " bits)");
  return {};
}

InputArray CastToArray(nb::handle handle, const std::string& what, const TensorType* wanted) {
  const auto fits = [&](const InputArray& input) {
    if (wanted == nullptr) return true;
    return input.bits_are_bfloat16 ? wanted->dtype == DType::kBF16 : input.array.dtype() == DlpackType(wanted->dtype);
  };
  InputArray input;
  bool is_array = nb::try_cast(handle, input.array);
  if (is_array && fits(input)) return input;
  const nb::module_ arrays = nb::module_::import_("lockstep._base.arrays");
  if (!is_array) {
    const nb::object bits = arrays.attr("bits_of_bfloat16")(handle);
    is_array = input.bits_are_bfloat16 = nb::try_cast(bits, input.array);
    if (is_array && fits(input)) return input;
  }
  const std::string dtype(wanted == nullptr ? "" : DTypeName(wanted->dtype));
  const nb::object widened = arrays.attr("widened")(handle, dtype);
  if (!widened.is_none()) return CastToArray(widened, what);
  const std::string advice = nb::cast<std::string>(arrays.attr("advice")(handle, dtype));
  if (is_array) {
    ThrowIfError(InvalidArgument() << what << ": expected " << *wanted << ", found " << BorrowArray(input, what).type
                                   << advice);
  }
  const std::string found = nb::cast<std::string>(arrays.attr("description")(handle));
  ThrowIfError(
      InvalidArgument() << what << " is " << found
                        << ", expected an array of numbers in the CPU's memory and byte order (NumPy or DLPack)"
                        << advice);
  return input;
}

std::string TextOf(nb::handle handle, const std::string& what) {
  std::string text;
  if (!nb::isinstance<nb::str>(handle) || !nb::try_cast(handle, text) ||
      FindInvalidText(text) != std::string_view::npos) {
    PyErr_Clear();  // set for a text with a lone surrogate
    const std::string shown = nb::cast<std::string>(nb::steal<nb::str>(PyObject_ASCII(handle.ptr())));
    ThrowIfError(InvalidArgument() << what << " is " << shown << ", expected text");
  }
  return text;
}

Tensor CopyArray(const InputArray& array, const std::string& what) {
  const ConstTensorRef ref = BorrowArray(array, what);
  Tensor tensor(ref.type);
  std::memcpy(tensor.mutable_bytes(), ref.data, tensor.num_bytes());
  return tensor;
}

bool ArrayInPlace::IsWritable() const { return nb::cast<bool>(array.attr("flags").attr("writeable")); }

ArrayInPlace CastToArrayInPlace(nb::handle handle, const std::string& what) {
  ArrayInPlace result{nb::borrow(handle), {}, {}};
  const nb::module_ arrays = nb::module_::import_("lockstep._base.arrays");
  const bool is_array = nb::isinstance(handle, nb::module_::import_("numpy").attr("ndarray"));
  if (is_array) {
    const nb::object bits = arrays.attr("bits_of_bfloat16")(handle);
    result.memory.bits_are_bfloat16 = !bits.is_none();
    const nb::handle numbers = bits.is_none() ? handle : nb::handle(bits);
    if (nb::try_cast(numbers, result.memory.array, /*convert=*/false)) {
      const ConstTensorRef ref = BorrowArray(result.memory, what);
      result.ref = {ref.type, const_cast<void*>(ref.data)};  // writers must check IsWritable
      return result;
    }
  }
  const std::string found = nb::cast<std::string>(arrays.attr("description")(handle));
  ThrowIfError(InvalidArgument() << what << " is " << found << (is_array ? ", not in row-major order" : "")
                                 << ", expected a NumPy array of numbers in row-major order");
  return result;
}

OutputArray::OutputArray(TensorType type) : type_(std::move(type)) {
  constexpr size_t kAlignment = 64;
  const size_t bytes = (type_.num_bytes() / kAlignment + 1) * kAlignment;
  memory_.reset(static_cast<std::byte*>(std::aligned_alloc(kAlignment, bytes)));
  if (!memory_) {
    ThrowIfError(ErrorStream(absl::StatusCode::kResourceExhausted)
                 << "the host cannot provide " << bytes << " bytes of memory for an array of " << type_);
  }
}

nb::object OutputArray::Release() {
  if (given_) return given_->array;
  std::vector<size_t> shape;
  for (int64_t dim : type_.shape.dims()) shape.push_back(static_cast<size_t>(dim));
  std::byte* memory = memory_.release();
  nb::capsule owner(memory, [](void* p) noexcept { std::free(p); });
  if (type_.dtype == DType::kBF16) {
    // NumPy has no bfloat16. Return the bits, in the type of the package ml_dtypes if that is installed.
    const nb::ndarray<nb::numpy> bits(memory, shape.size(), shape.data(), owner, nullptr, DlpackType(DType::kU16));
    return nb::module_::import_("lockstep._base.arrays").attr("bfloat16")(nb::cast(bits));
  }
  return nb::cast(nb::ndarray<nb::numpy>(memory, shape.size(), shape.data(), owner, nullptr, DlpackType(type_.dtype)));
}

nb::object ToNumpy(const Tensor& tensor) {
  OutputArray array(tensor.type());
  std::memcpy(array.ref().data, tensor.bytes(), tensor.num_bytes());
  return array.Release();
}

}  // namespace lockstep::python
