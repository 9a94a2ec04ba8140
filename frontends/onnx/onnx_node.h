// The ONNX node that a converter converts: inputs, attributes, the builder to write to, and the outputs to set.
// Internal to the frontend; lives while one node is converted.
//
// Errors of attributes are sticky, like those of the builder: after an attribute of the wrong type the builder's status
// is the error, the builder returns null values, and the import ends after the converter. So a converter must check the
// status before it reads the type of a value that it has built:
//   RETURN_IF_ERROR(n.b().status());

#pragma once

#include <cstdint>
#include <optional>
#include <set>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "core/builder.h"
#include "core/status.h"
#include "core/tensor.h"
#include "frontends/onnx/imported_model.h"
#include "frontends/onnx/schema_fwd.h"
#include "frontends/onnx/subgraph.h"
#include "frontends/onnx/values.h"

namespace lockstep {

// Returns the node's metadata `name`, or an empty string if there is none.
std::string_view MetadataOf(const onnx::NodeProto& proto, std::string_view name);

class OnnxNode {
 public:
  // All non-empty inputs of `proto` must be among the importer's values. If the node is in a function, `call` has the
  // attributes that its own may refer to. Notes go to the importer's model.
  OnnxNode(const onnx::NodeProto& proto, std::string source, int64_t opset, const OnnxAttributes& call,
           SubgraphImporter& importer);

  Builder& b() { return builder_; }
  int64_t opset() const { return opset_; }  // of the operator's domain
  // True if the operator is ONNX's own and the opset is below `opset`.
  bool IsBeforeOnnxOpset(int64_t opset) const;
  const std::string& op_type() const;
  // The PyTorch operator from which PyTorch's exporter made the node, such as "clamp.Tensor"; empty if the file does
  // not say. Needed where several PyTorch operators with different gradients are one ONNX operator.
  std::string TorchOperator() const;
  const std::string& source() const { return source_; }  // "onnx:/fc1/MatMul", "torch:fc1/node_MatMul_0"
  void AddNote(std::string note) { model_.notes.push_back(std::move(note)); }

  // --- Inputs. The table of operators says how many are required; only later ones may be absent. ---------------------
  int num_inputs() const;  // without trailing ones whose name is empty
  bool has_input(int i) const;
  Value input(int i);                                        // if it is not a tensor: null, and the builder fails
  const TensorType& type(int i) { return input(i).type(); }  // requires that input(i) is not null
  const Shape& shape(int i) { return type(i).shape; }
  std::vector<Value> inputs();  // all inputs, of which none may be absent
  // The value of an input, which must be known at import.
  absl::StatusOr<Tensor> ConstantInput(int i);
  absl::StatusOr<std::vector<int64_t>> IntsInput(int i);  // of rank 0 or 1
  // The same, or the value of an initializer. That initializer is then not trained, unless it is also used elsewhere.
  absl::StatusOr<Tensor> ConstantOrInitialInput(int i);
  // The value of an input if it does not depend on given values or data, else null. For optional simplifications.
  const Tensor* DataIndependentInput(int i) const;
  absl::StatusOr<double> FloatInput(int i);                // of one element; may be an initializer
  absl::StatusOr<std::vector<double>> FloatsInput(int i);  // of rank 0 or 1; may be an initializer
  // For operators that also take sequences and optionals (`takes_any_kind` in the table). For other operators, all
  // inputs are tensors.
  OnnxValue AnyInput(int i);  // OnnxNothing if it is absent
  absl::StatusOr<OnnxSequence> SequenceInput(int i);

  // --- Attributes. An attribute that no converter asks for is an error: its meaning would be lost. -------------------
  bool has_attr(std::string_view name) const { return Find(name) != nullptr; }
  int64_t Int(std::string_view name, int64_t default_value);
  bool Flag(std::string_view name, bool default_value) { return Int(name, default_value ? 1 : 0) != 0; }
  double Float(std::string_view name, double default_value);
  std::string String(std::string_view name, std::string default_value);
  std::vector<int64_t> Ints(std::string_view name, std::vector<int64_t> default_value = {});
  std::vector<double> Floats(std::string_view name);
  std::vector<std::string> Strings(std::string_view name);
  absl::StatusOr<Tensor> TensorAttr(std::string_view name);
  void Ignore(std::string_view name) { asked_.insert(std::string(name)); }  // it does not affect the results
  absl::Status CheckAllAttributesAsked() const;

  std::string_view Metadata(std::string_view name) const { return MetadataOf(proto_, name); }

  // --- Bodies: attributes that are graphs (frontends/onnx/subgraph.h) ------------------------------------------------
  absl::StatusOr<const onnx::GraphProto*> Body(std::string_view name);
  // Imports `body` with these inputs and returns its outputs. `run` says which run it is, such as "[3]".
  absl::StatusOr<std::vector<OnnxValue>> ImportBody(const onnx::GraphProto& body, std::vector<OnnxValue> inputs,
                                                    const std::string& run) {
    return importer_.ImportBody(*this, body, std::move(inputs), run);
  }
  absl::StatusOr<OnnxLoopBody> TraceLoop(const onnx::GraphProto& body, const std::vector<OnnxLoopInput>& inputs) {
    return importer_.TraceLoop(*this, body, inputs);
  }
  // Must be called before computing a table of `entries` that becomes a constant. Returns an error if the file asks for
  // too many.
  absl::Status ReserveTable(double entries) { return importer_.ReserveTable(*this, entries); }
  // The value if it is known at import, else null. Values that the node itself has built so far are not known.
  const Tensor* FindConstant(Value value) { return values_.FindConstant(value); }

  // Ints from the attribute `name` if the opset is below `since`, else from input `i`; nothing if absent.
  absl::StatusOr<std::optional<std::vector<int64_t>>> IntsAttrOrInput(std::string_view name, int64_t since, int i);

  // --- Outputs -------------------------------------------------------------------------------------------------------
  int num_outputs() const;
  bool has_output(int i) const;
  void SetOutput(int i, Value value);         // no effect if the node has no output i, or the value is null
  void SetAnyOutput(int i, OnnxValue value);  // the same, for any kind
  const std::vector<std::optional<OnnxValue>>& outputs() const { return outputs_; }  // nullopt if not set

  // --- Errors and checks ---------------------------------------------------------------------------------------------
  // "Conv: <message>"; the importer appends the source.
  ErrorStream Error() const;
  ErrorStream Unsupported() const;
  // `axis`, which may be negative, as an index into a tensor of `rank`; an error if it is out of range.
  absl::StatusOr<int64_t> Axis(int64_t axis, int64_t rank) const;
  absl::StatusOr<std::vector<int64_t>> Axes(std::vector<int64_t> axes,
                                            int64_t rank) const;  // increasing; an error if an axis repeats
  // `dims` as a shape; an error if one is negative or there are too many elements.
  absl::StatusOr<Shape> CheckedShape(std::vector<int64_t> dims) const;
  // Returns an error if the rank of input i is less than `rank`.
  absl::Status RequireRank(int i, int64_t rank);

 private:
  const onnx::AttributeProto* Find(std::string_view name) const;
  // The attribute if it is present and of type `type` (onnx::AttributeProto::AttributeType). Fails the builder if it
  // has another type.
  const onnx::AttributeProto* Ask(std::string_view name, int type);

  const onnx::NodeProto& proto_;
  const std::string source_;
  const int64_t opset_;
  const OnnxAttributes& call_;
  SubgraphImporter& importer_;
  OnnxValues& values_;
  Builder& builder_;
  ImportedModel& model_;
  std::set<std::string> asked_;
  std::vector<std::optional<OnnxValue>> outputs_;
};

// NumPy's broadcasting, which ONNX calls multidirectional: the common shape, or an error with the shapes.
absl::StatusOr<Shape> BroadcastShapes(const OnnxNode& n, const std::vector<Value>& values);
// `x` broadcast to `shape`: dimensions of extent 1 are repeated and leading dimensions added. Requires that `shape`
// comes from BroadcastShapes.
Value BroadcastTo(Builder& b, Value x, const Shape& shape);
// All inputs of `n` with their common shape.
absl::StatusOr<std::vector<Value>> BroadcastInputs(OnnxNode& n);
// Sets output 0 to `op` of input 0, or of inputs 0 and 1 after broadcasting.
absl::Status Unary(OnnxNode& n, std::string_view op);
absl::Status Binary(OnnxNode& n, std::string_view op);

}  // namespace lockstep
