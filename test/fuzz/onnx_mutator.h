// Changes of serialized ONNX models that bytes at random seldom make: what comes out parses, so that the importer sees
// it.

#pragma once

#include <string>
#include <string_view>

namespace lockstep {

// A model in which one to three places of `bytes` are changed, perhaps to what they were; "" if `bytes` is no model
// with nodes. The same for the same seed.
std::string MutateOnnx(std::string_view bytes, unsigned seed);

}  // namespace lockstep
