// Imports nodes, wherever in a file they stand: in its graph, in a body (of an If, a Loop, a Scan), in a function that
// the file defines. A body sees the names of the graph around it; a function sees its inputs and the attributes of its
// call alone. Bodies and functions leave no trace but their nodes: each run of a body, and each call of a function, is
// imported anew, with a source that says where:
//
//   onnx:/loop/Loop[3]/Add           node Add in the fourth iteration of node /loop/Loop
//   onnx:/loop/Loop[i]/Add           the same node, of a loop that runs when the program does
//   onnx:/if/If.then_branch/Add      node Add of the branch that node /if/If takes
//   onnx:/gelu/Gelu/Mul              node Mul of the function that node /gelu/Gelu calls
//   torch:encoder.0.linear1/MatMul   node MatMul that PyTorch's exporter made of module encoder.0.linear1
//
// So a file can ask for more nodes than it has: the limits below end that. Internal to the frontend; used by one
// import.

#pragma once

#include <map>
#include <string>
#include <unordered_map>
#include <vector>

#include "core/builder.h"
#include "core/ops/scan_parts.h"
#include "core/status.h"
#include "frontends/onnx/schema_fwd.h"
#include "frontends/onnx/values.h"
#include "frontends/onnx_importer.h"

namespace lockstep {

class OnnxNode;
struct OnnxOp;

// How deep bodies and calls may be nested.
inline constexpr size_t kMaxNesting = 64;
// How many iterations a Loop or a Scan, and how many elements a sequence may have. Each iteration becomes nodes of its
// own, so that what is compiled grows with their number.
inline constexpr int64_t kMaxUnrolled = 1024;
// How many nodes all runs of bodies and calls of functions may have together: about as many as compile in minutes.
inline constexpr int64_t kMaxNodesInBodies = 1 << 17;
// How many entries all tables that the import computes for the file's nodes may have together: weights of a resizing,
// factors of a Fourier transform, positions of a grid.
inline constexpr double kMaxTableEntries = 1 << 26;

// The attributes that a function is called with, and its defaults, by name: what its nodes refer to.
using OnnxAttributes = std::map<std::string, const onnx::AttributeProto*>;

// What an input of a loop's body is.
struct OnnxLoopInput {
  enum class Kind { kCarried, kScanned, kConstant };
  Kind kind = Kind::kConstant;
  Value outer;  // at first; what is scanned along its dimension 0; the same in each iteration
};

// One iteration: in `body`, what the outputs are, and the operands in `parts`, whose results are for the caller to
// choose.
struct OnnxLoopBody {
  Graph body;
  ScanParts parts;
  std::vector<Value> outputs;
  std::vector<bool> is_true;  // of each output, whether it is one bool that is known to be true
};

class SubgraphImporter {
 public:
  using Nodes = google::protobuf::RepeatedPtrField<onnx::NodeProto>;
  using OpsetImports = google::protobuf::RepeatedPtrField<onnx::OperatorSetIdProto>;

  // All arguments must outlive this, `file` unchanged. `opset` is the file's, of the default domain. Notes go to
  // `model`.
  SubgraphImporter(const onnx::ModelProto& file, int64_t opset, Builder& builder, OnnxValues& values,
                   ImportedModel& model);

  // Imports nodes in order into the innermost scope of the values. Errors begin with the operator of the node and end
  // with its source.
  absl::Status AddNodes(const Nodes& nodes);

  // Imports `body`, which is an attribute of `n`, in a scope of its own in which its inputs have the values `inputs`;
  // returns what its outputs are. `run` says which run of which body: "[3]", ".then_branch".
  absl::StatusOr<std::vector<OnnxValue>> ImportBody(const OnnxNode& n, const onnx::GraphProto& body,
                                                    std::vector<OnnxValue> inputs, const std::string& run);

  // The body as one iteration of a loop that runs when the program does, for MakeScan. What does not depend on the
  // inputs that change stays in the graph. An error where the body says more of an iteration than values: a shape that
  // changes, a sequence, a number that an operator needs to know; the graph is then as it was, but for dead nodes.
  absl::StatusOr<OnnxLoopBody> TraceLoop(const OnnxNode& n, const onnx::GraphProto& body,
                                         const std::vector<OnnxLoopInput>& inputs);

  // Before a table of so many entries is computed for `n`: an error if that is too many for one file.
  absl::Status ReserveTable(const OnnxNode& n, double entries);

  Builder& builder() { return builder_; }
  OnnxValues& values() { return values_; }
  ImportedModel& model() { return model_; }

 private:
  // What the nodes of a body, of a function or of the file's graph share.
  struct Frame {
    const OpsetImports* opsets;
    int64_t opset;                                  // of the default domain
    const onnx::FunctionProto* function = nullptr;  // that the nodes are in, also if in a body in it
    OnnxAttributes attributes;                      // of its call
  };
  class Level;  // enters a body or a function, and leaves it when it ends

  std::string SourceOf(const onnx::NodeProto& proto, const std::string& name) const;
  absl::Status AddNode(const onnx::NodeProto& proto, const std::string& source);
  absl::Status CheckInputs(const onnx::NodeProto& proto, int min_inputs, int max_inputs, bool takes_any_kind) const;
  absl::Status DefineOutputs(const onnx::NodeProto& proto, const OnnxNode& node);
  absl::Status Convert(const OnnxOp& op, OnnxNode& node);
  absl::Status FoldNewNodes();

  const onnx::FunctionProto* FindFunction(const onnx::NodeProto& call) const;  // null if it calls none
  absl::Status CallFunction(const onnx::FunctionProto& function, const onnx::NodeProto& call,
                            const std::string& source);
  absl::StatusOr<Frame> FrameOf(const onnx::FunctionProto& function, const onnx::NodeProto& call) const;
  absl::Status DefineBodyInputs(const OnnxNode& n, const onnx::GraphProto& body, std::vector<OnnxValue> inputs);
  absl::Status DefineBodyInitializers(const OnnxNode& n, const onnx::GraphProto& body);
  void EraseTraced(Node* last_before, const std::vector<Value>& placeholders);

  absl::StatusOr<std::vector<OnnxValue>> GetAll(const google::protobuf::RepeatedPtrField<std::string>& names,
                                                const std::string& whose);

  const onnx::ModelProto& file_;
  Builder& builder_;
  OnnxValues& values_;
  ImportedModel& model_;
  std::vector<Frame> frames_;
  std::map<std::string, const onnx::FunctionProto*> functions_;  // by domain, name and overload
  // However often a body runs, its constants are in the graph once. By the initializer or the node in the file.
  std::unordered_map<const void*, Value> constants_;
  int64_t nodes_in_bodies_ = 0;
  double table_entries_ = 0;
  bool error_has_source_ = false;
  Node* last_folded_ = nullptr;  // nodes up to this one have been through FoldNewNodes
};

}  // namespace lockstep
