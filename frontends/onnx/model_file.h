// Reads an ONNX file into the classes of its schema, and checks the file as a whole. Internal; any thread.

#pragma once

#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "core/status.h"
#include "onnx/onnx.pb.h"

namespace lockstep {

inline constexpr int64_t kOldestIrVersion = 3, kNewestIrVersion = 14;
inline constexpr int64_t kOldestOpset = 1, kNewestOpset = 28;  // of the default domain

// True for the domain of ONNX's own operators, which has two names.
inline bool IsDefaultDomain(std::string_view domain) { return domain.empty() || domain == "ai.onnx"; }

struct ModelFile {
  onnx::ModelProto model;
  int64_t opset = 0;                // opset of the default domain
  std::optional<std::string> path;  // of the file; external data is in its folder
};

// Reads the file `path`. External data is read too, except that of the main graph's initializers, which is most of a
// large model: DecodeTensor reads it straight into its final place. Errors say what is wrong with the file but not its
// name; the caller adds it.
absl::StatusOr<ModelFile> ReadModelFile(const std::string& path);
// The same for a serialized model; external data is an error.
absl::StatusOr<ModelFile> ReadModelBytes(std::string_view bytes);

// Returns the opset of the default domain, 0 if it is not imported. It is an error to import a domain in two opsets.
absl::StatusOr<int64_t> DefaultOpset(const google::protobuf::RepeatedPtrField<onnx::OperatorSetIdProto>& imports);

// Returns an error if a name in the model is not valid text (core/text.h) and thus cannot be printed.
absl::Status CheckNames(const onnx::ModelProto& model);

// Turns batch normalisation that was saved in training form into inference form if its statistics are initializers,
// that is, if the training form only holds their initial state. Appends a sentence for each change to `notes`.
void ToInferenceForm(onnx::GraphProto& graph, std::vector<std::string>& notes);

// Removes the input training_mode of every Dropout, including those in bodies and functions.
void DropoutToInferenceForm(onnx::ModelProto& model);

}  // namespace lockstep
