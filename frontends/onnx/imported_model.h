// The choices of an import (frontends/onnx_importer.h), and the operators that can be imported. Plain values; any
// thread.

#pragma once

#include <cstdint>
#include <map>
#include <optional>
#include <set>
#include <string>
#include <vector>

#include "core/graph.h"
#include "core/tensor.h"

namespace lockstep {

struct ImportOptions {
  // Extents of dimensions of the model's inputs. The key is the name of a symbolic dimension, or the place of any
  // dimension: "x:0" is dimension 0 of input x, whatever the file says of it. All symbolic dimensions must be given.
  std::map<std::string, int64_t> dims;
  // The inputs that are split between ranks, and the dimension of each that is split. If absent: dimension 0 of each
  // input whose dimension 0 is symbolic or given by its place. If empty: none.
  std::optional<std::map<std::string, int64_t>> split = std::nullopt;
  // The values of data inputs that decide shapes, such as the shape of a Reshape or the k of a TopK. An input whose
  // value an operator needs becomes a constant and is removed from the graph's inputs; the others stay inputs. If the
  // file lists an initializer among its inputs, the value given here replaces the file's.
  std::map<std::string, Tensor> values = {};
  // Float initializers that are not parameters, such as tables of positions or masks. They become constants, not
  // states.
  std::set<std::string> constants = {};
  // Float initializers that are parameters, whatever the file says of them, such as a learnt temperature, which has no
  // dimensions. They become states even if no node uses them.
  std::set<std::string> states = {};
};

// The parts of the imported file that ExportOnnx and ImportWithDims need.
struct OnnxOrigin {
  std::string file;   // for messages
  std::string model;  // the serialized ModelProto, without the data of the parameters
  ImportOptions options;
};

struct ImportedModel {
  // Data inputs are split along the data axis as ImportOptions says: that dimension is the batch. States are the
  // parameters. Results have the names of the model's outputs. The source of a node is "onnx:/fc1/MatMul" for a node of
  // that name, "onnx:MatMul_3" for the fourth node of the file if it has no name, and
  // "torch:encoder.0.fc1/node_MatMul_3" if PyTorch's exporter says that the node belongs to module encoder.0.fc1. A
  // Dropout becomes a `dropout`, which is inactive until the pass training-mode enables it; a Dropout with ratio 0, or
  // whose input training_mode is the constant false, becomes nothing. If the file draws at random, the graph has the
  // states of core/random.h.
  Graph graph;

  // The initial value of each state except those of core/random.h, which start at 0. States are ImportOptions::states
  // and the float initializers that the graph uses and that are parameters or running statistics. PyTorch's exporter
  // marks parameters, buffers and constants in the file. Without such a mark, an initializer with at least one
  // dimension is a parameter, except ImportOptions::constants and single elements that PyTorch's exporter computed
  // ("val_67"). The other initializers, and all integer ones, are constants. An initializer that only sets an attribute
  // (a shape, the bounds of Clip) is folded away.
  std::map<std::string, Tensor> parameters;

  // The parameters that neither the file nor an option marks as such. Tables and masks look the same.
  std::vector<std::string> unmarked_parameters;

  // The float initializers that the graph uses as constants, by the names of the constants. Most are epsilons and
  // scales, but a scalar that should be trained looks the same (ConstantsToStates of passes/training/train_step.h).
  std::vector<std::string> constants;

  // The inputs in ImportOptions::values whose values became part of the graph. The graph is valid for these values
  // only.
  std::vector<std::string> fixed_inputs;

  OnnxOrigin origin;

  // Changes of the import that a user may want to know, one sentence each: Dropout drops nothing, batch normalisation
  // is imported in inference form (passes/training/training_mode.h turns both to training form).
  std::vector<std::string> notes;

  // The entries of the model's metadata whose keys begin with "lockstep.", without this prefix: lockstep/_torch writes
  // facts about the module there. The values of keys that begin with "lockstep.note." are `notes`.
  std::map<std::string, std::string> metadata;
};

// An operator that can be imported, and a range of opsets of its domain. One operator may have several ranges.
struct OnnxOperator {
  std::string domain;  // empty for ONNX's own
  std::string type;
  int64_t since, until;  // inclusive
};
std::vector<OnnxOperator> SupportedOnnxOperators();

}  // namespace lockstep
