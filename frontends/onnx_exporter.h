// Writes an imported model back as ONNX, with other values for its parameters, such as trained ones. Any thread.

#pragma once

#include <map>
#include <string>

#include "core/status.h"
#include "core/tensor.h"
#include "frontends/onnx_importer.h"

namespace lockstep {

// Writes the model of `origin` to `path`, each parameter with its value in `values`, stored in the file itself. The
// file appears complete or not at all: it is written beside `path` and renamed. Every parameter needs a value of its
// type; names that are not initializers, such as optimizer states, are ignored, so that the caller can pass all states
// of a training step.
absl::Status ExportOnnx(const OnnxOrigin& origin, const std::map<std::string, Tensor>& values, const std::string& path);

}  // namespace lockstep
