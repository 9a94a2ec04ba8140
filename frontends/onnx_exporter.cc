#include "frontends/onnx_exporter.h"

#include <fcntl.h>
#include <unistd.h>

#include <filesystem>
#include <fstream>
#include <limits>
#include <system_error>

#include "frontends/onnx/model_file.h"
#include "frontends/onnx/tensor_data.h"
#include "onnx/onnx.pb.h"

namespace lockstep {
namespace {

absl::Status SetParameters(const std::map<std::string, Tensor>& values, onnx::GraphProto& graph) {
  for (onnx::TensorProto& tensor : *graph.mutable_initializer()) {
    const auto it = values.find(tensor.name());
    if (it != values.end()) {
      ASSIGN_OR_RETURN(const TensorType type, TypeOf(tensor));
      if (it->second.type() != type) {
        return InvalidArgument() << "parameter '" << tensor.name() << "' is " << it->second.type() << ", the model has "
                                 << type;
      }
      EncodeTensor(it->second, tensor);
      continue;
    }
    int64_t elements = 1;
    for (int64_t dim : tensor.dims()) elements *= dim;
    if (elements != 0 && !HasData(tensor))
      return InvalidArgument() << "parameter '" << tensor.name() << "' has no value";
  }
  return absl::OkStatus();
}

// Flushes a file, or the entries of a folder, to disk if the file system supports it.
void Sync(const std::string& path) {
  const int descriptor = open(path.c_str(), O_RDONLY | O_CLOEXEC);
  if (descriptor < 0) return;
  (void)fsync(descriptor);
  (void)close(descriptor);
}

// Writes beside `path`, then renames: a reader, also after a crash, finds the old file or the new one.
absl::Status WriteAtomically(const std::string& bytes, const std::string& path) {
  const std::string temporary = path + ".tmp." + std::to_string(getpid());
  std::error_code error;
  {
    std::ofstream file(temporary, std::ios::binary | std::ios::trunc);
    if (!file) return NotFound() << "cannot be opened for writing";
    file.write(bytes.data(), static_cast<std::streamsize>(bytes.size()));
    file.close();
    if (!file) {
      std::filesystem::remove(temporary, error);
      return Internal() << "cannot be written (" << bytes.size() << " bytes): is the disk full?";
    }
  }
  Sync(temporary);
  std::filesystem::rename(temporary, path, error);
  if (!error) {
    const std::filesystem::path folder = std::filesystem::path(path).parent_path();
    Sync(folder.empty() ? "." : folder.string());
    return absl::OkStatus();
  }
  const std::string reason = error.message();
  std::filesystem::remove(temporary, error);
  return Internal() << "cannot be replaced: " << reason;
}

}  // namespace

absl::Status ExportOnnx(const OnnxOrigin& origin, const std::map<std::string, Tensor>& values,
                        const std::string& path) {
  onnx::ModelProto model;
  if (!model.ParseFromString(origin.model))
    return FailedPrecondition() << path << ": the model was not imported from ONNX";
  DropoutToInferenceForm(model);
  RETURN_IF_ERROR(Annotate(SetParameters(values, *model.mutable_graph()), path));
  const size_t size = model.ByteSizeLong();
  if (size > static_cast<size_t>(std::numeric_limits<int>::max())) {
    return Unimplemented() << path << ": the model takes " << size
                           << " bytes; models of 2 GiB and more cannot be written yet";
  }
  return Annotate(WriteAtomically(model.SerializeAsString(), path), path);
}

}  // namespace lockstep
