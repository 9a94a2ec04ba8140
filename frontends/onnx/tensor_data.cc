#include "frontends/onnx/tensor_data.h"

#include <algorithm>
#include <cstring>
#include <filesystem>
#include <fstream>
#include <system_error>
#include <vector>

#include "absl/strings/numbers.h"
#include "onnx/onnx.pb.h"

namespace lockstep {
namespace {

using onnx::TensorProto;

struct TypePair {
  int onnx;
  DType dtype;
};

constexpr TypePair kTypes[] = {
    {TensorProto::FLOAT, DType::kF32},     {TensorProto::UINT8, DType::kU8},   {TensorProto::INT8, DType::kI8},
    {TensorProto::UINT16, DType::kU16},    {TensorProto::INT16, DType::kI16},  {TensorProto::INT32, DType::kI32},
    {TensorProto::INT64, DType::kI64},     {TensorProto::BOOL, DType::kBool},  {TensorProto::FLOAT16, DType::kF16},
    {TensorProto::DOUBLE, DType::kF64},    {TensorProto::UINT32, DType::kU32}, {TensorProto::UINT64, DType::kU64},
    {TensorProto::BFLOAT16, DType::kBF16},
};

// Copies a repeated field into `result`, converting each element by a cast that keeps its low bits.
template <typename T, typename Field>
absl::Status CopyField(const Field& field, Tensor& result) {
  if (field.size() != result.num_elements()) {
    return InvalidArgument() << "has " << field.size() << " elements of data, its type is " << result.type();
  }
  const auto data = result.mutable_data<T>();
  for (int i = 0; i < field.size(); ++i) {
    if constexpr (std::is_same_v<T, Float16> || std::is_same_v<T, BFloat16>) {
      data[static_cast<size_t>(i)].bits = static_cast<uint16_t>(field.Get(i));
    } else if constexpr (std::is_same_v<T, bool>) {
      data[static_cast<size_t>(i)] = field.Get(i) != 0;
    } else {
      data[static_cast<size_t>(i)] = static_cast<T>(field.Get(i));
    }
  }
  return absl::OkStatus();
}

absl::Status CopyTypedData(const TensorProto& tensor, Tensor& result) {
  switch (result.dtype()) {
    case DType::kF32: return CopyField<float>(tensor.float_data(), result);
    case DType::kF64: return CopyField<double>(tensor.double_data(), result);
    case DType::kI64: return CopyField<int64_t>(tensor.int64_data(), result);
    case DType::kU32: return CopyField<uint32_t>(tensor.uint64_data(), result);
    case DType::kU64: return CopyField<uint64_t>(tensor.uint64_data(), result);
    default: break;
  }
  return DispatchDType(result.dtype(),
                       [&](auto tag) { return CopyField<typename decltype(tag)::type>(tensor.int32_data(), result); });
}

// Replaces nonzero bytes by 1, as bools have no other values than 0 and 1.
void NormalizeBools(Tensor& tensor) {
  if (tensor.dtype() != DType::kBool) return;
  std::byte* bytes = tensor.mutable_bytes();
  for (size_t i = 0; i < tensor.num_bytes(); ++i) bytes[i] = bytes[i] == std::byte(0) ? std::byte(0) : std::byte(1);
}

absl::Status CopyRawData(const TensorProto& tensor, Tensor& result) {
  if (tensor.raw_data().size() != result.num_bytes()) {
    return InvalidArgument() << "has " << tensor.raw_data().size() << " bytes of data, its type " << result.type()
                             << " takes " << result.num_bytes();
  }
  if (result.num_bytes() == 0) return absl::OkStatus();
  std::memcpy(result.mutable_bytes(), tensor.raw_data().data(), result.num_bytes());
  NormalizeBools(result);
  return absl::OkStatus();
}

// The place of external data, from the key-value pairs that ONNX stores.
struct ExternalRange {
  std::string location;
  uint64_t offset = 0;
  std::optional<uint64_t> length;  // if absent, up to the end of the file
};

absl::StatusOr<ExternalRange> RangeOf(const TensorProto& tensor) {
  ExternalRange range;
  for (const onnx::StringStringEntryProto& entry : tensor.external_data()) {
    uint64_t number = 0;
    const bool is_number = absl::SimpleAtoi(entry.value(), &number);
    if (entry.key() == "location") {
      range.location = entry.value();
    } else if (entry.key() == "offset" || entry.key() == "length") {
      if (!is_number)
        return InvalidArgument() << "external data: " << entry.key() << " '" << entry.value() << "' is not a number";
      if (entry.key() == "offset") range.offset = number;
      else range.length = number;
    }  // a checksum is not verified
  }
  if (range.location.empty()) return InvalidArgument() << "external data without a location";
  return range;
}

// The folder of the model. If the model is a link, also the folders of the targets of all links on the way: a cache may
// keep links to files elsewhere, with links to the data beside those to the model.
std::vector<std::filesystem::path> FoldersOf(std::filesystem::path model) {
  constexpr int kMostLinks = 40;  // the limit of Linux
  std::vector<std::filesystem::path> folders = {model.parent_path()};
  std::error_code error;
  for (int i = 0; i < kMostLinks; ++i) {
    const std::filesystem::path target = std::filesystem::read_symlink(model, error);
    if (error) break;
    model = model.parent_path() / target;
    folders.push_back(model.parent_path());
  }
  return folders;
}

// True if `path`, which has no links, is `folder` or below it.
bool IsWithin(const std::filesystem::path& folder, const std::filesystem::path& path) {
  return std::mismatch(folder.begin(), folder.end(), path.begin(), path.end()).first == folder.end();
}

// The path of external data: a file in the first of the model's folders that has it. The file may be a link to
// anywhere, as the user decides where it points. Its folder must not be outside the model's folder.
absl::StatusOr<std::filesystem::path> ExternalPath(const std::string& model, const std::string& location) {
  namespace fs = std::filesystem;
  const fs::path relative(location);
  bool is_outside = relative.is_absolute();
  std::error_code error;
  if (!is_outside) {
    for (const fs::path& folder : FoldersOf(model)) {
      const fs::path root = fs::canonical(folder.empty() ? "." : folder, error);
      if (error) return NotFound() << "external data: directory " << folder.string() << ": " << error.message();
      const fs::path parent = fs::weakly_canonical((root / relative).parent_path(), error);
      if (error) return NotFound() << "external data: " << location << ": " << error.message();
      const fs::path path = parent / relative.filename();
      if (!IsWithin(root, parent)) is_outside = true;
      else if (fs::is_regular_file(path, error)) return path;
    }
  }
  if (is_outside) return InvalidArgument() << "external data: " << location << " is outside the model's directory";
  return NotFound() << "external data: " << location << " is not a file beside the model";
}

// Reads the file instead of mapping it: if it is truncated meanwhile, reading is an error, while a mapping would crash
// the process.
absl::StatusOr<Tensor> DecodeExternal(const std::string& model, const TensorProto& tensor, TensorType type) {
  ASSIGN_OR_RETURN(const ExternalRange range, RangeOf(tensor));
  ASSIGN_OR_RETURN(const std::filesystem::path path, ExternalPath(model, range.location));
  std::error_code error;
  const uint64_t file_size = std::filesystem::file_size(path, error);
  if (error) return NotFound() << "external data: " << range.location << ": " << error.message();
  if (range.offset > file_size || range.length.value_or(0) > file_size - range.offset) {
    return InvalidArgument() << "external data: " << range.location << " has " << file_size
                             << " bytes, which end before offset " << range.offset << " plus length "
                             << range.length.value_or(0);
  }
  const uint64_t length = range.length.value_or(file_size - range.offset);
  if (length != type.num_bytes()) {
    return InvalidArgument() << "external data: " << range.location << " gives " << length << " bytes, its type "
                             << type << " takes " << type.num_bytes();
  }
  Tensor result(std::move(type));
  if (length == 0) return result;
  std::ifstream file(path, std::ios::binary);
  file.seekg(static_cast<std::streamoff>(range.offset));
  file.read(reinterpret_cast<char*>(result.mutable_bytes()), static_cast<std::streamsize>(length));
  if (!file) return NotFound() << "external data: " << range.location << " cannot be read";
  NormalizeBools(result);
  return result;
}

}  // namespace

absl::StatusOr<DType> DTypeFromOnnx(int type) {
  for (const TypePair& pair : kTypes) {
    if (pair.onnx == type) return pair.dtype;
  }
  const std::string name = TensorProto::DataType_IsValid(type)
                               ? TensorProto::DataType_Name(static_cast<TensorProto::DataType>(type))
                               : std::to_string(type);
  return Unimplemented() << "element type " << name << " is not supported";
}

int DTypeToOnnx(DType dtype) {
  for (const TypePair& pair : kTypes) {
    if (pair.dtype == dtype) return pair.onnx;
  }
  LOCKSTEP_CHECK(false) << dtype;
  __builtin_unreachable();
}

absl::StatusOr<TensorType> TypeOf(const TensorProto& tensor) {
  ASSIGN_OR_RETURN(const DType dtype, DTypeFromOnnx(tensor.data_type()));
  std::vector<int64_t> dims(tensor.dims().begin(), tensor.dims().end());
  int64_t elements = 1;
  for (int64_t dim : dims) {
    if (dim < 0) return InvalidArgument() << "has the negative dimension " << dim;
    if (dim > kMaxElements || (elements *= std::max<int64_t>(dim, 1)) > kMaxElements)
      return InvalidArgument() << "is too large: " << ListToString(dims);
  }
  return TensorType{dtype, Shape(std::move(dims))};
}

absl::StatusOr<Tensor> DecodeTensor(const TensorProto& tensor, const std::optional<std::string>& model) {
  ASSIGN_OR_RETURN(TensorType type, TypeOf(tensor));
  if (tensor.has_segment()) return Unimplemented() << "is stored in segments, which is not supported";
  if (tensor.data_location() == TensorProto::EXTERNAL) {
    if (model) return DecodeExternal(*model, tensor, std::move(type));
    return InvalidArgument() << "has external data where none is allowed";
  }
  // Checked before the allocation, so that a few flipped bits in the dimensions do not allocate gigabytes.
  if (tensor.has_raw_data() && tensor.raw_data().size() != type.num_bytes()) {
    return InvalidArgument() << "has " << tensor.raw_data().size() << " bytes of data, its type " << type << " takes "
                             << type.num_bytes();
  }
  if (!tensor.has_raw_data() && type.num_elements() > 0 && !HasData(tensor)) return InvalidArgument() << "has no data";
  const int64_t stored = int64_t{tensor.float_data_size()} + tensor.int32_data_size() + tensor.int64_data_size() +
                         tensor.double_data_size() + tensor.uint64_data_size();
  if (!tensor.has_raw_data() && stored != type.num_elements()) {
    return InvalidArgument() << "has " << stored << " elements of data, its type is " << type;
  }
  Tensor result(std::move(type));
  RETURN_IF_ERROR(tensor.has_raw_data() ? CopyRawData(tensor, result) : CopyTypedData(tensor, result));
  return result;
}

void EncodeTensor(const Tensor& value, TensorProto& tensor) {
  ClearData(tensor);
  tensor.set_data_type(DTypeToOnnx(value.dtype()));
  tensor.clear_dims();
  for (int64_t dim : value.shape().dims()) tensor.add_dims(dim);
  tensor.set_raw_data(value.bytes(), value.num_bytes());
}

void ClearData(TensorProto& tensor) {
  tensor.clear_raw_data();
  tensor.clear_float_data();
  tensor.clear_int32_data();
  tensor.clear_int64_data();
  tensor.clear_double_data();
  tensor.clear_uint64_data();
  tensor.clear_string_data();
  tensor.clear_external_data();
  tensor.clear_data_location();
}

bool HasData(const TensorProto& tensor) {
  return tensor.has_raw_data() || tensor.float_data_size() || tensor.int32_data_size() || tensor.int64_data_size() ||
         tensor.double_data_size() || tensor.uint64_data_size() || tensor.string_data_size() ||
         tensor.external_data_size();
}

absl::Status InlineExternalData(const std::string& model, TensorProto& tensor) {
  if (tensor.data_location() != TensorProto::EXTERNAL) return absl::OkStatus();
  ASSIGN_OR_RETURN(const Tensor value, DecodeTensor(tensor, model));
  ClearData(tensor);
  tensor.set_raw_data(value.bytes(), value.num_bytes());
  return absl::OkStatus();
}

}  // namespace lockstep
