// Reads an ONNX file: the first stage of every compilation. The graph is the one-rank program over the global batch;
// what the file calls initializers become its states. ONNX opsets 1 to 28 of the default domain, IR versions 3 to 14;
// the operators are those of the tables in frontends/onnx/. Functions are replaced by their nodes, an If by the branch
// that it takes, a Loop or a Scan by its iterations (frontends/onnx/subgraph.h). Any thread may import.
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
#include <optional>
#include <set>
#include <string>
#include <string_view>
#include <vector>

#include "core/graph.h"
#include "core/status.h"
#include "core/tensor.h"

namespace lockstep {

struct ImportOptions {
  // Extents of the dimensions of the model's inputs: of a symbolic one by its name, of any one by its place, "x:0" for
  // dimension 0 of input x, whatever the file says of it. All symbolic ones must be given.
  std::map<std::string, int64_t> dims;
  // The inputs that the ranks share, and along which dimension. If absent: along dimension 0 those whose dimension 0 is
  // symbolic, or is given by its place. If empty: none.
  std::optional<std::map<std::string, int64_t>> split = std::nullopt;
  // The values that data inputs will have, for models whose inputs decide shapes: the shape of a Reshape, the k of a
  // TopK. Those that an operator needs to know become constants, and are no inputs of the graph; the others stay
  // inputs. An initializer that is listed among the inputs has the value that is given here, else the file's.
  std::map<std::string, Tensor> values = {};
  // Float initializers that are no parameters: tables of positions, masks. They become constants, not states.
  std::set<std::string> constants = {};
  // Float initializers that are parameters, whatever the file says of them: a temperature that is learnt, which has no
  // dimension. They become states, those too that no node uses.
  std::set<std::string> states = {};
};

// What ExportOnnx and ImportWithDims need of the file that was imported.
struct OnnxOrigin {
  std::string file;   // for messages
  std::string model;  // the serialized ModelProto, without the data of the parameters
  ImportOptions options;
};

struct ImportedModel {
  // Data inputs are split along the data axis as ImportOptions says: that dimension is the batch. States are the
  // parameters. Results have the names of the model's outputs. Nodes say where they are from: "onnx:/fc1/MatMul" is the
  // node of that name, "onnx:MatMul_3" the nameless fourth node of the file, and "torch:encoder.0.fc1/node_MatMul_3"
  // one of which PyTorch's exporter says that it is of module encoder.0.fc1. A Dropout is a `dropout`, which the pass
  // training-mode lets drop; one with ratio 0, or whose input training_mode is the constant false, is nothing. If the
  // file draws at random, the graph has the states of core/random.h.
  Graph graph;

  // The initial value of each state but those of core/random.h, which start at 0: of the ImportOptions::states, and of
  // the float initializers that the graph uses and that are parameters or running statistics. PyTorch's exporter says
  // in a file which are parameters, buffers and constants; where nothing is said, those with at least one dimension are
  // parameters, but for ImportOptions::constants and for single elements that PyTorch's exporter computed ("val_67").
  // The others are constants, as integers are; what only sets an attribute (a shape, the bounds of Clip) is folded
  // away.
  std::map<std::string, Tensor> parameters;

  // Of the parameters those of which neither the file nor an option says that they are: tables and masks look the same.
  std::vector<std::string> supposed_parameters;

  // The float initializers that the graph uses and that are no states, by the names of their constants: epsilons and
  // scales, but a scalar that is to be learnt looks the same (ConstantsToStates of passes/training/train_step.h).
  std::vector<std::string> constants;

  // Of the inputs in ImportOptions::values those whose values went into the graph: it is the program for these alone.
  std::vector<std::string> fixed_inputs;

  OnnxOrigin origin;

  // What the import changed and a user may want to know, one sentence each: Dropout drops nothing, batch
  // normalisation is imported in inference form (passes/training/training_mode.h turns both).
  std::vector<std::string> notes;
};

// Errors name the file, and in it the node, input, dimension or initializer.
absl::StatusOr<ImportedModel> ImportOnnx(const std::string& path, const ImportOptions& options = {});

// The same, of a serialized ModelProto that is in no file; `name` stands for it in messages. Data in other files cannot
// be found.
absl::StatusOr<ImportedModel> ImportOnnxBytes(std::string_view bytes, const std::string& name,
                                              const ImportOptions& options = {});

// The model of `origin` once more, with the extents `dims` in place of those that it was imported with; the dimensions
// that `dims` does not name keep theirs. `parameters` are the values of its states: each needs one, and values of other
// names are ignored. The file is not read again.
absl::StatusOr<ImportedModel> ImportWithDims(const OnnxOrigin& origin, const std::map<std::string, Tensor>& parameters,
                                             const std::map<std::string, int64_t>& dims);

// An operator of ONNX's default domain that is imported, and in which opsets; one operator may have several such
// ranges.
struct OnnxOperator {
  std::string type;
  int64_t since, until;  // inclusive
};
std::vector<OnnxOperator> SupportedOnnxOperators();

}  // namespace lockstep
