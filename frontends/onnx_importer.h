// Reads an ONNX file: the first stage of every compilation. The graph is the one-rank program over the global batch;
// float initializers become its states. Supports ONNX opsets 1 to 28 of the default domain, IR versions 3 to 14, and
// the operators in the tables of frontends/onnx/. Functions are replaced by their nodes, an If by the branch that it
// takes, a Loop or a Scan by its iterations or, if these are many, by a `scan` node (frontends/onnx/subgraph.h). Any
// thread may import.
//
//   MatMul(x: float[batch,784], fc1.weight)        dims={"batch": 128}
//     ==>
//   graph @mlp(%x: f32[128,784] split(0), state %fc1.weight: f32[784,10]) -> (y: f32[128,10]) {
//     %y = matmul %x, %fc1.weight : f32[128,10] @"onnx:/fc1/MatMul"
//     return %y
//   }

#pragma once

#include <cstdint>
#include <map>
#include <string>
#include <string_view>
#include <vector>

#include "core/graph.h"
#include "core/status.h"
#include "core/tensor.h"
#include "frontends/onnx/imported_model.h"

namespace lockstep {

// Imports the file `path`. Errors name the file, and the node, input, dimension or initializer in it.
absl::StatusOr<ImportedModel> ImportOnnx(const std::string& path, const ImportOptions& options = {});

// The same for a serialized ModelProto that is in no file. Messages call it `name`. Data in other files is an error.
absl::StatusOr<ImportedModel> ImportOnnxBytes(std::string_view bytes, const std::string& name,
                                              const ImportOptions& options = {});

// Imports the model of `origin` again with the extents `dims`. Dimensions that `dims` does not name keep their extents.
// `parameters` are the values of its states: each state needs one, and values of other names are ignored. Does not read
// the file again.
absl::StatusOr<ImportedModel> ImportWithDims(const OnnxOrigin& origin, const std::map<std::string, Tensor>& parameters,
                                             const std::map<std::string, int64_t>& dims);

}  // namespace lockstep
