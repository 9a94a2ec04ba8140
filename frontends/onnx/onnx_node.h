// What a converter sees of the ONNX node that it converts: inputs, attributes, the builder to write to, and outputs to
// set. Internal to the frontend; lives while one node is converted.
//
// Attributes have sticky errors, as the builder's operations have: after a mistyped one the builder's status is the
// error, what is built is null, and the import ends after the converter. So a converter that reads a type of what it
// has built first does
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
#include "frontends/onnx/schema_fwd.h"
#include "frontends/onnx/subgraph.h"
#include "frontends/onnx/values.h"
#include "frontends/onnx_importer.h"

namespace lockstep {

// What the node's metadata says under this name; empty if it says nothing.
std::string_view MetadataOf(const onnx::NodeProto& proto, std::string_view name);

class OnnxNode {
 public:
  // All non-empty inputs of `proto` must be among the importer's values. `call` has what its attributes may refer to,
  // if it is in a function. Notes go to the importer's model.
  OnnxNode(const onnx::NodeProto& proto, std::string source, int64_t opset, const OnnxAttributes& call,
           SubgraphImporter& importer);

  Builder& b() { return builder_; }
  int64_t opset() const { return opset_; }
  const std::string& op_type() const;
  // The operator of PyTorch that torch's exporter made the node of, such as "clamp.Tensor"; empty if the file does not
  // say. For what ONNX has one operator for, and PyTorch several with different gradients.
  std::string TorchOperator() const;
  const std::string& source() const { return source_; }  // "onnx:/fc1/MatMul", "torch:fc1/node_MatMul_0"
  void AddNote(std::string note) { model_.notes.push_back(std::move(note)); }

  // --- Inputs. The table of operators says how many are required; only later ones may be absent. ---------------------
  int num_inputs() const;  // without those at the end that are left out by an empty name
  bool has_input(int i) const;
  Value input(int i);                                        // null if it is no tensor, and then the builder has failed
  const TensorType& type(int i) { return input(i).type(); }  // requires that input(i) is not null
  const Shape& shape(int i) { return type(i).shape; }
  std::vector<Value> inputs();  // all, none absent
  // The value of an input that must be known before the program runs.
  absl::StatusOr<Tensor> ConstantInput(int i);
  absl::StatusOr<std::vector<int64_t>> IntsInput(int i);  // of rank 0 or 1
  // The same, or what an initializer holds, which nobody then trains unless it is used elsewhere too.
  absl::StatusOr<Tensor> KnownInput(int i);
  // The value of an input that is the same whatever the program is given, else null: for where knowing it is better.
  const Tensor* FixedInput(int i) const;
  absl::StatusOr<double> FloatInput(int i);                // of one element; an initializer of one will do
  absl::StatusOr<std::vector<double>> FloatsInput(int i);  // of rank 0 or 1; an initializer will do
  // For operators that take more than tensors (`takes_any_kind` in the table); for others, all inputs are tensors.
  OnnxValue AnyInput(int i);  // nothing if there is none
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
  void Ignore(std::string_view name) { asked_.insert(std::string(name)); }  // it has no effect on what we compute
  absl::Status CheckAllAttributesAsked() const;

  std::string_view Metadata(std::string_view name) const { return MetadataOf(proto_, name); }

  // --- Bodies: attributes that are graphs (frontends/onnx/subgraph.h) ------------------------------------------------
  absl::StatusOr<const onnx::GraphProto*> Body(std::string_view name);
  // What the outputs of `body` are if its inputs are these. `run` says which run it is: "[3]".
  absl::StatusOr<std::vector<OnnxValue>> ImportBody(const onnx::GraphProto& body, std::vector<OnnxValue> inputs,
                                                    const std::string& run) {
    return importer_.ImportBody(*this, body, std::move(inputs), run);
  }
  absl::StatusOr<OnnxLoopBody> TraceLoop(const onnx::GraphProto& body, const std::vector<OnnxLoopInput>& inputs) {
    return importer_.TraceLoop(*this, body, inputs);
  }
  // Before computing a table of so many entries that becomes a constant: an error if the file asks for too many.
  absl::Status ReserveTable(double entries) { return importer_.ReserveTable(*this, entries); }
  // The value if it is known before the program runs, else null; what the node itself has built so far is not known.
  const Tensor* FindConstant(Value value) { return values_.FindConstant(value); }

  // Ints from the attribute `name` up to opset `since` - 1, from input `i` from then on; nothing if absent.
  absl::StatusOr<std::optional<std::vector<int64_t>>> IntsAttrOrInput(std::string_view name, int64_t since, int i);

  // --- Outputs -------------------------------------------------------------------------------------------------------
  int num_outputs() const;
  bool has_output(int i) const;
  void SetOutput(int i, Value value);         // no effect if the node has no output i, or the value is null
  void SetAnyOutput(int i, OnnxValue value);  // the same, for any kind
  const std::vector<std::optional<OnnxValue>>& outputs() const { return outputs_; }  // of those that are set

  // --- Errors and checks ---------------------------------------------------------------------------------------------
  // "Conv: <message>"; the importer appends the source.
  ErrorStream Error() const;
  ErrorStream Unsupported() const;
  // `axis` counted from the front, of a tensor of `rank`; an error if it is out of range.
  absl::StatusOr<int64_t> Axis(int64_t axis, int64_t rank) const;
  absl::StatusOr<std::vector<int64_t>> Axes(std::vector<int64_t> axes,
                                            int64_t rank) const;  // increasing; an error if one repeats
  // `dims` as a shape; an error if one is negative or the elements are too many.
  absl::StatusOr<Shape> CheckedShape(std::vector<int64_t> dims) const;
  // An error unless the rank of input i is at least `rank`.
  absl::Status RequireRank(int i, int64_t rank);

 private:
  const onnx::AttributeProto* Find(std::string_view name) const;
  // The attribute if it is present and of that type (onnx::AttributeProto::AttributeType); fails the builder if the
  // type is another one.
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
// `x` with its dimensions of extent 1 stretched, and with new leading dimensions. Requires that `shape` comes from
// BroadcastShapes.
Value BroadcastTo(Builder& b, Value x, const Shape& shape);
// All inputs of `n` with their common shape.
absl::StatusOr<std::vector<Value>> BroadcastInputs(OnnxNode& n);
// Sets output 0 to the op of input 0, or of inputs 0 and 1 broadcast against each other.
absl::Status Unary(OnnxNode& n, std::string_view op);
absl::Status Binary(OnnxNode& n, std::string_view op);

}  // namespace lockstep
