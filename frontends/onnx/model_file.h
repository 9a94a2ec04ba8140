// Reads an ONNX file into its schema's classes, and checks what holds for the file as a whole. Internal; any thread.

#pragma once

#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "core/status.h"
#include "onnx/onnx.pb.h"

namespace lockstep {

inline constexpr int64_t kOldestIrVersion = 3, kNewestIrVersion = 14;
inline constexpr int64_t kOldestOpset = 1, kNewestOpset = 28;

struct ModelFile {
  onnx::ModelProto model;
  int64_t opset = 0;                // of the default domain
  std::optional<std::string> path;  // beside which data in other files lies
};

// The model of the file `path`. Data in other files is read in, but for that of the main graph's initializers, which is
// most of a large model: DecodeTensor reads it where it is to be. Errors say what is wrong with the file, but not its
// name: the caller knows it.
absl::StatusOr<ModelFile> ReadModelFile(const std::string& path);
// The same, of a serialized model; data in other files is an error.
absl::StatusOr<ModelFile> ReadModelBytes(std::string_view bytes);

// An error if a name in the model is no text (core/text.h): it could not be printed.
absl::Status CheckNames(const onnx::ModelProto& model);

// Turns batch normalisation that was saved in training form into inference form where a file's training form is but an
// initial state: statistics that are initializers. What changed is added to `notes`.
void ToInferenceForm(onnx::GraphProto& graph, std::vector<std::string>& notes);

// Removes the input training_mode of every Dropout, also in bodies and functions.
void DropoutToInferenceForm(onnx::ModelProto& model);

}  // namespace lockstep
