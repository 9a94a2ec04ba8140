// Imports nodes from any part of a file: its graph, a body (of an If, a Loop, a Scan), or a function that the file
// defines. A body sees the names of the graph around it. A function sees only its inputs and the attributes of its
// call. The graph has only their nodes: each run of a body, and each call of a function, is imported separately, with a
// source that says where it is:
//
//   onnx:/loop/Loop[3]/Add           node Add in the fourth iteration of node /loop/Loop
//   onnx:/loop/Loop[i]/Add           the same node in a loop that became a `scan` node
//   onnx:/if/If.then_branch/Add      node Add of the branch that node /if/If takes
//   onnx:/gelu/Gelu/Mul              node Mul of the function that node /gelu/Gelu calls
//   torch:encoder.0.linear1/MatMul   node MatMul that PyTorch's exporter made of module encoder.0.linear1
//
// So a small file can expand to very many nodes. The limits below bound their number. Internal to the frontend; used by
// one import.

#pragma once

#include <map>
#include <string>
#include <unordered_map>
#include <vector>

#include "core/builder.h"
#include "core/ops/scan_parts.h"
#include "core/status.h"
#include "frontends/onnx/imported_model.h"
#include "frontends/onnx/schema_fwd.h"
#include "frontends/onnx/values.h"

namespace lockstep {

class OnnxNode;
struct OnnxOp;

// The maximum nesting of bodies and calls.
inline constexpr size_t kMaxNesting = 64;
// The maximum number of unrolled iterations of a Loop or a Scan, and of elements of a sequence. Each iteration becomes
// separate nodes, so the size of the graph grows with their number. Longer loops have to become `scan` nodes
// (unroll.h).
inline constexpr int64_t kMaxUnrolled = 1024;
// The maximum number of nodes in all runs of bodies and calls of functions together: about as many as compile in
// minutes.
inline constexpr int64_t kMaxNodesInBodies = 1 << 17;
// The maximum number of entries in all tables that the import computes for the file's nodes together: weights of a
// resizing, factors of a Fourier transform, positions of a grid.
inline constexpr double kMaxTableEntries = 1 << 26;

// The attributes of a function's call, and the function's defaults, by name. Attributes of its nodes refer to them.
using OnnxAttributes = std::map<std::string, const onnx::AttributeProto*>;

// An input of a loop's body.
struct OnnxLoopInput {
  enum class Kind { kCarried, kScanned, kConstant };
  Kind kind = Kind::kConstant;
  Value outer;  // the initial value; the tensor scanned along dimension 0; or the constant
};

// One iteration of a loop: `body`, its operands in `parts`, and its `outputs`. The caller chooses the results of
// `parts`.
struct OnnxLoopBody {
  Graph body;
  ScanParts parts;
  std::vector<Value> outputs;
  std::vector<bool> is_true;  // for each output, true if it is one bool that is known to be true
};

class SubgraphImporter {
 public:
  using Nodes = google::protobuf::RepeatedPtrField<onnx::NodeProto>;
  using OpsetImports = google::protobuf::RepeatedPtrField<onnx::OperatorSetIdProto>;

  // All arguments must outlive this object, and `file` must not change. `opset` is the file's opset of the default
  // domain. Notes go to `model`.
  SubgraphImporter(const onnx::ModelProto& file, int64_t opset, Builder& builder, OnnxValues& values,
                   ImportedModel& model);

  // Imports nodes in order into the innermost scope of the values. An error begins with the operator of the node and
  // ends with its source.
  absl::Status AddNodes(const Nodes& nodes);

  // Imports `body`, an attribute of `n`, in a new scope in which its inputs have the values `inputs`. Returns the
  // values of its outputs. `run` says which run of which body it is: "[3]", ".then_branch".
  absl::StatusOr<std::vector<OnnxValue>> ImportBody(const OnnxNode& n, const onnx::GraphProto& body,
                                                    std::vector<OnnxValue> inputs, const std::string& run);

  // Imports the body as one iteration of a loop that stays a loop in the program, for MakeScan. Nodes that do not
  // depend on the changing inputs stay in the outer graph. Returns an error if an iteration is not a fixed computation:
  // a shape changes, a value is a sequence, or an operator needs a number at import. The graph is then as before,
  // except for dead nodes.
  absl::StatusOr<OnnxLoopBody> TraceLoop(const OnnxNode& n, const onnx::GraphProto& body,
                                         const std::vector<OnnxLoopInput>& inputs);

  // Must be called before a table of `entries` is computed for `n`. Returns an error if the file then has too many
  // entries.
  absl::Status ReserveTable(const OnnxNode& n, double entries);

  Builder& builder() { return builder_; }
  OnnxValues& values() { return values_; }
  ImportedModel& model() { return model_; }

 private:
  // The context that the nodes of a body, a function or the file's graph share.
  struct Frame {
    const OpsetImports* opsets;
    int64_t opset;                                  // opset of the default domain
    const onnx::FunctionProto* function = nullptr;  // the function that has the nodes, directly or in a body
    OnnxAttributes attributes;                      // attributes of the function's call
  };
  class Level;  // a scope guard: enters a body or a function, and leaves it when destroyed

  std::string SourceOf(const onnx::NodeProto& proto, const std::string& name) const;
  absl::Status AddNode(const onnx::NodeProto& proto, const std::string& source);
  absl::StatusOr<int64_t> OpsetOf(const onnx::NodeProto& proto) const;  // of the node's domain
  absl::Status CheckInputs(const onnx::NodeProto& proto, int min_inputs, int max_inputs, bool takes_any_kind) const;
  absl::Status DefineOutputs(const onnx::NodeProto& proto, const OnnxNode& node);
  absl::Status Convert(const OnnxOp& op, OnnxNode& node);
  absl::Status FoldNewNodes();

  const onnx::FunctionProto* FindFunction(const onnx::NodeProto& call) const;  // null if `call` calls none
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
  // Constants of bodies, by their initializer or node in the file. A body that runs several times adds each to the
  // graph once.
  std::unordered_map<const void*, Value> constants_;
  int64_t nodes_in_bodies_ = 0;
  double table_entries_ = 0;
  bool error_has_source_ = false;
  Node* last_folded_ = nullptr;  // nodes up to this one have been through FoldNewNodes
};

}  // namespace lockstep
