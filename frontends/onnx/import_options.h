// The choices of an import (frontends/onnx_importer.h), and the operators that can be imported. Plain values; any
// thread.

#pragma once

#include <cstdint>
#include <map>
#include <optional>
#include <set>
#include <string>
#include <vector>

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

// An operator of ONNX's default domain that can be imported, and a range of opsets. One operator may have several
// ranges.
struct OnnxOperator {
  std::string type;
  int64_t since, until;  // inclusive
};
std::vector<OnnxOperator> SupportedOnnxOperators();

}  // namespace lockstep
