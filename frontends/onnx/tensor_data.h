// Between ONNX's tensors and ours. Internal to the frontend; any thread.

#pragma once

#include <optional>
#include <string>

#include "core/status.h"
#include "core/tensor.h"
#include "frontends/onnx/schema_fwd.h"

namespace lockstep {

// Largest number of elements that a tensor of an imported model may have. Products of two such numbers still fit in 63
// bits, so shape arithmetic on a malformed file cannot overflow.
inline constexpr int64_t kMaxElements = int64_t{1} << 31;

// The element type of TensorProto::DataType `type`; an error for strings, 4- and 8-bit floats and other types that we
// lack.
absl::StatusOr<DType> DTypeFromOnnx(int type);
int DTypeToOnnx(DType dtype);

// The type of `tensor`; an error for an unknown element type, a negative dimension or more than kMaxElements.
absl::StatusOr<TensorType> TypeOf(const onnx::TensorProto& tensor);

// The value of a tensor; an error if the data does not fit its type. Data in another file, which must lie in
// `directory` or below, also after following links, goes straight into the value; without a directory it is an error.
absl::StatusOr<Tensor> DecodeTensor(const onnx::TensorProto& tensor, const std::optional<std::string>& directory = {});

// Stores `value` as raw data; the name stays.
void EncodeTensor(const Tensor& value, onnx::TensorProto& tensor);

// Removes the data, keeps name and type. HasData() is then false, unless the tensor has no elements.
void ClearData(onnx::TensorProto& tensor);
bool HasData(const onnx::TensorProto& tensor);

// Replaces a reference to a file in `directory` by that file's bytes.
absl::Status InlineExternalData(const std::string& directory, onnx::TensorProto& tensor);

}  // namespace lockstep
