// Changes serialized ONNX models in ways that random bytes seldom do. The results parse, so they reach the importer.

#pragma once

#include <string>
#include <string_view>

namespace lockstep {

// Returns the model with one to three places changed, perhaps to their old values; "" if `bytes` is not a model with
// nodes. Equal seeds give equal models.
std::string MutateOnnx(std::string_view bytes, unsigned seed);

}  // namespace lockstep
