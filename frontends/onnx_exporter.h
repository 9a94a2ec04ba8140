// Writes an imported model back as ONNX, with other values for its parameters: what training ends with. Any thread.

#pragma once

#include <map>
#include <string>

#include "core/status.h"
#include "core/tensor.h"
#include "frontends/onnx_importer.h"

namespace lockstep {

// Writes the model of `origin` to `path`, each parameter with its value in `values`, stored in the file itself. The
// file appears complete or not at all: it is written beside `path` and renamed. Every parameter needs a value of its
// type; values of other names are ignored if they are no initializers (optimizer state), so that all states of a step
// can be given.
absl::Status ExportOnnx(const OnnxOrigin& origin, const std::map<std::string, Tensor>& values, const std::string& path);

}  // namespace lockstep
