// Reads an ONNX file: the first stage of every compilation. The graph is the one-rank program over the global batch; what
// the file calls initializers become its states. ONNX opsets 9 to 28 of the default domain, IR versions 3 to 14; the
// operators are those of the tables in frontends/onnx/. Any thread may import.
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
#include <vector>

#include "core/graph.h"
#include "core/status.h"
#include "core/tensor.h"

namespace lockstep {

struct ImportOptions {
  // Extents of the symbolic dimensions of the model's inputs, by name. All must be given, and no others.
  std::map<std::string, int64_t> dims;
};

// What ExportOnnx needs of the file that was imported.
struct OnnxOrigin {
  std::string file;   // for messages
  std::string model;  // the serialized ModelProto in inference form, without the data of the parameters
};

struct ImportedModel {
  // Data inputs whose dimension 0 is symbolic are split(0) along the data axis: that dimension is the batch. States are the
  // parameters. Results have the names of the model's outputs. Nodes say where they are from: "onnx:/fc1/MatMul" is the
  // node of that name, "onnx:MatMul_3" the nameless fourth node of the file.
  Graph graph;

  // The initial value of each state: every floating-point initializer with at least one dimension that the graph uses.
  // Scalars and integers are constants; what only sets an attribute (a shape, the bounds of Clip) is folded away.
  std::map<std::string, Tensor> parameters;

  OnnxOrigin origin;

  // What the import changed and a user may want to know, one sentence each: Dropout is the identity, batch normalisation
  // is imported in inference form (passes/training_mode.h turns it).
  std::vector<std::string> notes;
};

// Errors name the file, and in it the node, input, dimension or initializer.
absl::StatusOr<ImportedModel> ImportOnnx(const std::string& path, const ImportOptions& options = {});

}  // namespace lockstep
