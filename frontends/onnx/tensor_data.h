// Converts between ONNX's tensors and ours. Internal to the frontend; any thread.

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

// The dtype for TensorProto::DataType `type`; an error for strings, 4- and 8-bit floats and other types that Lockstep
// does not have.
absl::StatusOr<DType> DTypeFromOnnx(int type);
int DTypeToOnnx(DType dtype);

// The type of `tensor`; an error for an unknown element type, a negative dimension or more than kMaxElements.
absl::StatusOr<TensorType> TypeOf(const onnx::TensorProto& tensor);

// The value of a tensor; an error if the data does not fit its type. External data is read straight into the value; it
// requires `model`, the path of the model. The file must be in the model's folder or below it, after links to folders
// are followed. If the model itself is a link, the folder is that of its target. The data file may be a link to
// anywhere.
absl::StatusOr<Tensor> DecodeTensor(const onnx::TensorProto& tensor, const std::optional<std::string>& model = {});

// Stores `value` as raw data; keeps the name.
void EncodeTensor(const Tensor& value, onnx::TensorProto& tensor);

// Removes the data; keeps name and type. HasData() is then false, unless the tensor has no elements.
void ClearData(onnx::TensorProto& tensor);
bool HasData(const onnx::TensorProto& tensor);

// Replaces a reference to external data beside `model` by the data itself.
absl::Status InlineExternalData(const std::string& model, onnx::TensorProto& tensor);

}  // namespace lockstep
