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

// The value of a tensor; an error if the data does not fit its type. Data in another file goes straight into the value;
// without `model`, the path of the model, that is an error. The file must be in the folder of the model or below, also
// after following links to folders; where the model is a link, in the folder of what that leads to or below. The file
// itself may be a link to anywhere.
absl::StatusOr<Tensor> DecodeTensor(const onnx::TensorProto& tensor, const std::optional<std::string>& model = {});

// Stores `value` as raw data; the name stays.
void EncodeTensor(const Tensor& value, onnx::TensorProto& tensor);

// Removes the data, keeps name and type. HasData() is then false, unless the tensor has no elements.
void ClearData(onnx::TensorProto& tensor);
bool HasData(const onnx::TensorProto& tensor);

// Replaces a reference to a file beside `model` by that file's bytes.
absl::Status InlineExternalData(const std::string& model, onnx::TensorProto& tensor);

}  // namespace lockstep
