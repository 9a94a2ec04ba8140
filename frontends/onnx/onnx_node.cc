#include "frontends/onnx/onnx_node.h"

#include <algorithm>
#include <utility>

#include "frontends/onnx/model_file.h"
#include "frontends/onnx/tensor_data.h"

namespace lockstep {

using onnx::AttributeProto;

OnnxNode::OnnxNode(const onnx::NodeProto& proto, std::string source, int64_t opset, const OnnxAttributes& call,
                   SubgraphImporter& importer)
    : proto_(proto),
      source_(std::move(source)),
      opset_(opset),
      call_(call),
      importer_(importer),
      values_(importer.values()),
      builder_(importer.builder()),
      model_(importer.model()),
      outputs_(static_cast<size_t>(proto.output_size())) {}

bool OnnxNode::IsBeforeOnnxOpset(int64_t opset) const { return IsDefaultDomain(proto_.domain()) && opset_ < opset; }

const std::string& OnnxNode::op_type() const { return proto_.op_type(); }

// The exporter writes "%y : [num_users=1] = call_function[target=torch.ops.aten.clamp.Tensor](args = ...".
std::string OnnxNode::TorchOperator() const {
  constexpr std::string_view kTarget = "[target=torch.ops.aten.";
  const std::string_view node = Metadata("pkg.torch.onnx.fx_node");
  const size_t at = node.find(kTarget);
  const size_t end = at == std::string_view::npos ? at : node.find(']', at);
  if (end == std::string_view::npos) return "";
  return std::string(node.substr(at + kTarget.size(), end - at - kTarget.size()));
}

int OnnxNode::num_inputs() const {
  int count = proto_.input_size();
  while (count > 0 && proto_.input(count - 1).empty()) --count;
  return count;
}

bool OnnxNode::has_input(int i) const {
  return i < proto_.input_size() && !proto_.input(i).empty() && !values_.IsNothing(proto_.input(i));
}

Value OnnxNode::input(int i) {
  if (values_.IsTensor(proto_.input(i))) return values_.Get(proto_.input(i));
  builder_.Fail(Error() << "input " << i << " (" << proto_.input(i) << ") is " << KindOf(AnyInput(i))
                        << ", expected a tensor");
  return Value();
}

std::vector<Value> OnnxNode::inputs() {
  std::vector<Value> values;
  for (int i = 0; i < num_inputs(); ++i) values.push_back(input(i));
  return values;
}

absl::StatusOr<Tensor> OnnxNode::ConstantInput(int i) {
  const Tensor* value = values_.FindConstant(proto_.input(i));
  if (value == nullptr)
    return Unsupported() << "input " << i << " (" << proto_.input(i) << ") must be known before the program runs";
  return *value;
}

absl::StatusOr<std::vector<int64_t>> OnnxNode::IntsInput(int i) {
  ASSIGN_OR_RETURN(const Tensor value, ConstantInput(i));
  if (!IsInteger(value.dtype()) || value.shape().rank() > 1) {
    return Error() << "input " << i << " (" << proto_.input(i) << ") is " << value.type()
                   << ", expected a list of integers";
  }
  const Tensor wide = value.Converted(DType::kI64);
  return std::vector<int64_t>(wide.data<int64_t>().begin(), wide.data<int64_t>().end());
}

absl::StatusOr<double> OnnxNode::FloatInput(int i) {
  const Tensor* value = values_.FindInitialValue(proto_.input(i));
  if (value == nullptr)
    return Unsupported() << "input " << i << " (" << proto_.input(i) << ") must be known before the program runs";
  if (value->num_elements() != 1) {
    return Error() << "input " << i << " (" << proto_.input(i) << ") is " << value->type() << ", expected one element";
  }
  return value->At(0);
}

const Tensor* OnnxNode::DataIndependentInput(int i) const { return values_.FindDataIndependent(proto_.input(i)); }

absl::StatusOr<Tensor> OnnxNode::ConstantOrInitialInput(int i) {
  if (const Tensor* value = values_.FindInitialValue(proto_.input(i))) return *value;
  return Unsupported() << "input " << i << " (" << proto_.input(i) << ") must be known before the program runs";
}

absl::StatusOr<std::vector<double>> OnnxNode::FloatsInput(int i) {
  ASSIGN_OR_RETURN(const Tensor value, ConstantOrInitialInput(i));
  if (value.shape().rank() > 1 || !IsFloat(value.dtype())) {
    return Error() << "input " << i << " (" << proto_.input(i) << ") is " << value.type()
                   << ", expected a list of floats";
  }
  const Tensor wide = value.Converted(DType::kF64);
  return std::vector<double>(wide.data<double>().begin(), wide.data<double>().end());
}

OnnxValue OnnxNode::AnyInput(int i) {
  return has_input(i) ? values_.GetAny(proto_.input(i)) : OnnxValue(OnnxNothing());
}

absl::StatusOr<OnnxSequence> OnnxNode::SequenceInput(int i) {
  const OnnxValue value = AnyInput(i);
  if (const auto* sequence = std::get_if<OnnxSequence>(&value)) return *sequence;
  return Error() << "input " << i << " is " << KindOf(value) << ", expected a sequence";
}

// In a function an attribute may refer to one of the call. It is absent if the call does not have that attribute.
const AttributeProto* OnnxNode::Find(std::string_view name) const {
  for (const AttributeProto& attribute : proto_.attribute()) {
    if (attribute.name() != name) continue;
    if (attribute.ref_attr_name().empty()) return &attribute;
    const auto referred = call_.find(attribute.ref_attr_name());
    return referred == call_.end() ? nullptr : referred->second;
  }
  return nullptr;
}

std::string_view MetadataOf(const onnx::NodeProto& proto, std::string_view name) {
  for (const onnx::StringStringEntryProto& each : proto.metadata_props()) {
    if (each.key() == name) return each.value();
  }
  return {};
}

absl::StatusOr<const onnx::GraphProto*> OnnxNode::Body(std::string_view name) {
  const AttributeProto* attribute = Ask(name, AttributeProto::GRAPH);
  RETURN_IF_ERROR(builder_.status());
  if (attribute == nullptr) return Error() << "attribute " << name << " is missing";
  // Such a graph would wrongly see the names around the function's nodes instead of those around the call.
  if (std::any_of(call_.begin(), call_.end(), [&](const auto& each) { return each.second == attribute; })) {
    return Unsupported() << "attribute " << name << " is a graph that a function is called with; that is not supported";
  }
  return &attribute->g();
}

const AttributeProto* OnnxNode::Ask(std::string_view name, int type) {
  asked_.insert(std::string(name));
  const AttributeProto* attribute = Find(name);
  if (attribute == nullptr || attribute->type() == type) return attribute;
  builder_.Fail(Error() << "attribute " << name << " is of type "
                        << AttributeProto::AttributeType_Name(attribute->type()) << ", expected "
                        << AttributeProto::AttributeType_Name(type));
  return nullptr;
}

int64_t OnnxNode::Int(std::string_view name, int64_t default_value) {
  const AttributeProto* attribute = Ask(name, AttributeProto::INT);
  return attribute ? attribute->i() : default_value;
}

double OnnxNode::Float(std::string_view name, double default_value) {
  const AttributeProto* attribute = Ask(name, AttributeProto::FLOAT);
  return attribute ? static_cast<double>(attribute->f()) : default_value;
}

std::string OnnxNode::String(std::string_view name, std::string default_value) {
  const AttributeProto* attribute = Ask(name, AttributeProto::STRING);
  return attribute ? attribute->s() : default_value;
}

std::vector<int64_t> OnnxNode::Ints(std::string_view name, std::vector<int64_t> default_value) {
  const AttributeProto* attribute = Ask(name, AttributeProto::INTS);
  if (!attribute) return default_value;
  return std::vector<int64_t>(attribute->ints().begin(), attribute->ints().end());
}

std::vector<double> OnnxNode::Floats(std::string_view name) {
  const AttributeProto* attribute = Ask(name, AttributeProto::FLOATS);
  if (!attribute) return {};
  return std::vector<double>(attribute->floats().begin(), attribute->floats().end());
}

std::vector<std::string> OnnxNode::Strings(std::string_view name) {
  const AttributeProto* attribute = Ask(name, AttributeProto::STRINGS);
  if (!attribute) return {};
  return std::vector<std::string>(attribute->strings().begin(), attribute->strings().end());
}

absl::StatusOr<Tensor> OnnxNode::TensorAttr(std::string_view name) {
  const AttributeProto* attribute = Ask(name, AttributeProto::TENSOR);
  RETURN_IF_ERROR(builder_.status());
  if (!attribute) return Error() << "attribute " << name << " is missing";
  auto tensor = DecodeTensor(attribute->t());
  if (!tensor.ok()) return Annotate(tensor.status(), op_type() + ": attribute " + std::string(name));
  return tensor;
}

absl::Status OnnxNode::CheckAllAttributesAsked() const {
  for (const AttributeProto& attribute : proto_.attribute()) {
    if (asked_.count(attribute.name()) || Find(attribute.name()) == nullptr) continue;
    if (IsBeforeOnnxOpset(6) && attribute.name() == "consumed_inputs") continue;  // a hint that memory may be reused
    return Unsupported() << "attribute " << attribute.name() << " is not supported in opset " << opset_;
  }
  return absl::OkStatus();
}

absl::StatusOr<std::optional<std::vector<int64_t>>> OnnxNode::IntsAttrOrInput(std::string_view name, int64_t since,
                                                                              int i) {
  std::optional<std::vector<int64_t>> list;
  if (opset_ >= since) {
    if (!has_input(i)) return list;
    ASSIGN_OR_RETURN(list, IntsInput(i));
  } else if (has_attr(name)) {
    list = Ints(name);
    RETURN_IF_ERROR(builder_.status());
  }
  return list;
}

int OnnxNode::num_outputs() const { return proto_.output_size(); }

bool OnnxNode::has_output(int i) const { return i < proto_.output_size() && !proto_.output(i).empty(); }

void OnnxNode::SetOutput(int i, Value value) {
  if (value) SetAnyOutput(i, value);
}

void OnnxNode::SetAnyOutput(int i, OnnxValue value) {
  if (has_output(i)) outputs_[static_cast<size_t>(i)] = std::move(value);
}

ErrorStream OnnxNode::Error() const { return InvalidArgument() << op_type() << ": "; }

ErrorStream OnnxNode::Unsupported() const { return Unimplemented() << op_type() << ": "; }

absl::StatusOr<int64_t> OnnxNode::Axis(int64_t axis, int64_t rank) const {
  if (axis < -rank || axis >= rank) return Error() << "axis " << axis << " is outside a tensor of rank " << rank;
  return axis < 0 ? axis + rank : axis;
}

absl::StatusOr<std::vector<int64_t>> OnnxNode::Axes(std::vector<int64_t> axes, int64_t rank) const {
  for (int64_t& axis : axes) {
    ASSIGN_OR_RETURN(axis, Axis(axis, rank));
  }
  std::sort(axes.begin(), axes.end());
  if (std::adjacent_find(axes.begin(), axes.end()) != axes.end())
    return Error() << "axes " << ListToString(axes) << " have duplicates";
  return axes;
}

absl::StatusOr<Shape> OnnxNode::CheckedShape(std::vector<int64_t> dims) const {
  int64_t elements = 1;
  for (int64_t dim : dims) {
    if (dim < 0) return Error() << "negative dimension in shape " << ListToString(dims);
    if (dim > kMaxElements || (elements *= std::max<int64_t>(dim, 1)) > kMaxElements)
      return Error() << "shape " << ListToString(dims) << " is too large";
  }
  return Shape(std::move(dims));
}

absl::Status OnnxNode::RequireRank(int i, int64_t rank) {
  RETURN_IF_ERROR(builder_.status());
  if (shape(i).rank() >= rank) return absl::OkStatus();
  return Error() << "input " << i << " is " << type(i) << ", expected rank " << rank << " or more";
}

absl::StatusOr<Shape> BroadcastShapes(const OnnxNode& n, const std::vector<Value>& values) {
  int64_t rank = 0;
  for (Value value : values) rank = std::max(rank, value.shape().rank());
  std::vector<int64_t> dims(static_cast<size_t>(rank), 1);
  for (Value value : values) {
    const int64_t offset = rank - value.shape().rank();
    for (int64_t i = 0; i < value.shape().rank(); ++i) {
      int64_t& dim = dims[static_cast<size_t>(offset + i)];
      const int64_t extent = value.shape()[i];
      if (extent == 1 || extent == dim) continue;
      if (dim == 1) {
        dim = extent;
        continue;
      }
      ErrorStream error = n.Error() << "shapes do not broadcast:";
      for (Value each : values) error << " " << each.type();
      return error;
    }
  }
  return n.CheckedShape(std::move(dims));
}

Value BroadcastTo(Builder& b, Value x, const Shape& shape) {
  if (!x || x.shape() == shape) return x;
  const int64_t offset = shape.rank() - x.shape().rank();
  std::vector<int64_t> kept, dims;
  for (int64_t i = 0; i < x.shape().rank(); ++i) {
    if (x.shape()[i] != shape[offset + i]) continue;  // stretched, so dropped first
    kept.push_back(x.shape()[i]);
    dims.push_back(offset + i);
  }
  return b.Broadcast(b.Reshape(x, Shape(kept)), shape, dims);
}

namespace {

// Before opset 7 shapes must be equal, unless the attribute broadcast allows repeating the second input. Its dimensions
// then match the first input's dimensions from `axis` on, or the last ones.
absl::Status AlignSecondInput(OnnxNode& n, std::vector<Value>& values) {
  const bool may_broadcast = n.Flag("broadcast", false), has_axis = n.has_attr("axis");
  const int64_t rank = values[0].shape().rank(), other_rank = values[1].shape().rank();
  const int64_t given = n.Int("axis", 0);
  if (values[0].shape() == values[1].shape()) return absl::OkStatus();
  if (!may_broadcast || other_rank > rank) {
    return n.Error() << "shapes of " << n.type(0) << " and " << n.type(1)
                     << " differ, and before opset 7 only the attribute broadcast allows that, for the second";
  }
  if (!has_axis) return absl::OkStatus();
  ASSIGN_OR_RETURN(const int64_t axis, n.Axis(given, rank));
  if (axis + other_rank > rank) return n.Error() << "axis " << given << " leaves no room for " << n.type(1);
  std::vector<int64_t> dims = values[1].shape().dims();
  dims.resize(static_cast<size_t>(rank - axis), 1);
  values[1] = n.b().Reshape(values[1], Shape(std::move(dims)));
  return n.b().status();
}

}  // namespace

absl::StatusOr<std::vector<Value>> BroadcastInputs(OnnxNode& n) {
  std::vector<Value> values = n.inputs();
  RETURN_IF_ERROR(n.b().status());
  if (n.IsBeforeOnnxOpset(7) && values.size() == 2) RETURN_IF_ERROR(AlignSecondInput(n, values));
  ASSIGN_OR_RETURN(const Shape shape, BroadcastShapes(n, values));
  for (Value& value : values) value = BroadcastTo(n.b(), value, shape);
  RETURN_IF_ERROR(n.b().status());
  return values;
}

absl::Status Unary(OnnxNode& n, std::string_view op) {
  n.SetOutput(0, n.b().Op(op, {n.input(0)}));
  return absl::OkStatus();
}

absl::Status Binary(OnnxNode& n, std::string_view op) {
  ASSIGN_OR_RETURN(const std::vector<Value> xs, BroadcastInputs(n));
  n.SetOutput(0, n.b().Op(op, {xs[0], xs[1]}));
  return absl::OkStatus();
}

}  // namespace lockstep
