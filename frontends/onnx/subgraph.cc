#include "frontends/onnx/subgraph.h"

#include <algorithm>
#include <optional>
#include <set>
#include <utility>

#include "absl/strings/match.h"
#include "absl/strings/str_format.h"
#include "frontends/onnx/model_file.h"
#include "frontends/onnx/onnx_node.h"
#include "frontends/onnx/op_table.h"
#include "frontends/onnx/tensor_data.h"
#include "frontends/onnx/torch_scopes.h"
#include "onnx/onnx.pb.h"

namespace lockstep {
namespace {

std::string KeyOf(const std::string& domain, const std::string& name, const std::string& overload) {
  return (IsDefaultDomain(domain) ? "" : domain) + '\0' + name + '\0' + overload;
}

std::string NameOf(const onnx::FunctionProto& function) {
  return (function.domain().empty() ? "" : function.domain() + ".") + function.name();
}

// True for a node that gives the same constant in each run.
bool IsConstant(const onnx::NodeProto& proto) {
  return proto.op_type() == "Constant" && IsDefaultDomain(proto.domain()) && proto.output_size() == 1 &&
         std::all_of(proto.attribute().begin(), proto.attribute().end(),
                     [](const onnx::AttributeProto& attribute) { return attribute.ref_attr_name().empty(); });
}

}  // namespace

// Imports nodes into a new frame and scope during its lifetime. Restores the builder's source at the end.
class SubgraphImporter::Level {
 public:
  Level(SubgraphImporter& importer, Frame frame, std::string place, bool sees_outer)
      : importer_(importer), source_(importer.builder_.source()) {
    importer_.frames_.push_back(std::move(frame));
    importer_.values_.OpenScope(std::move(place), sees_outer);
  }
  Level(const Level&) = delete;
  Level& operator=(const Level&) = delete;
  ~Level() {
    importer_.values_.CloseScope();
    importer_.frames_.pop_back();
    importer_.builder_.set_source(source_);
  }

 private:
  SubgraphImporter& importer_;
  const std::string source_;
};

SubgraphImporter::SubgraphImporter(const onnx::ModelProto& file, int64_t opset, Builder& builder, OnnxValues& values,
                                   ImportedModel& model)
    : file_(file), builder_(builder), values_(values), model_(model) {
  frames_.push_back(Frame{&file_.opset_import(), opset, nullptr, {}});
  for (const onnx::FunctionProto& function : file_.functions())
    functions_.emplace(KeyOf(function.domain(), function.name(), function.overload()), &function);
}

absl::Status SubgraphImporter::AddNodes(const Nodes& nodes) {
  for (int i = 0; i < nodes.size(); ++i) {
    const onnx::NodeProto& proto = nodes[i];
    const std::string name = proto.name().empty() ? proto.op_type() + "_" + std::to_string(i) : proto.name();
    const std::string source = SourceOf(proto, name);
    const absl::Status status = AddNode(proto, source);
    if (status.ok()) continue;
    const std::string message(status.message());
    // Errors of inner nodes already have their source, and those of our own ops already end with it.
    const bool has_source = std::exchange(error_has_source_, true) || message.ends_with(source);
    return has_source ? status : absl::Status(status.code(), message + ", at " + source);
  }
  return absl::OkStatus();
}

// Inside a body or a function, the source of the node that runs it already has the module.
std::string SubgraphImporter::SourceOf(const onnx::NodeProto& proto, const std::string& name) const {
  const std::string source =
      values_.is_in_body() ? "" : TorchSource(MetadataOf(proto, "pkg.torch.onnx.name_scopes"), name);
  return source.empty() ? SourceIn(values_.place(), name) : source;
}

absl::Status SubgraphImporter::CheckInputs(const onnx::NodeProto& proto, int min_inputs, int max_inputs,
                                           bool takes_any_kind) const {
  for (int i = 0; i < std::max(proto.input_size(), min_inputs); ++i) {
    const bool named = i < proto.input_size() && !proto.input(i).empty();
    if (named && !values_.Has(proto.input(i))) {
      return InvalidArgument() << proto.op_type() << ": input " << i << " ('" << proto.input(i)
                               << "') is neither an input of the graph, "
                               << "nor an initializer, nor the output of an earlier node";
    }
    const bool given = named && !values_.IsNothing(proto.input(i));
    if (!given && (i < min_inputs || max_inputs == kAnyNumber))
      return InvalidArgument() << proto.op_type() << ": input " << i << " is missing";
    if (given && i >= max_inputs) {
      return InvalidArgument() << proto.op_type() << ": " << proto.input_size() << " inputs, expected at most "
                               << max_inputs;
    }
    if (given && !takes_any_kind && !values_.IsTensor(proto.input(i))) {
      return InvalidArgument() << proto.op_type() << ": input " << i << " ('" << proto.input(i)
                               << "') is a sequence, expected a tensor";
    }
  }
  return absl::OkStatus();
}

absl::Status SubgraphImporter::AddNode(const onnx::NodeProto& proto, const std::string& source) {
  const bool in_body = values_.is_in_body();
  if (in_body && ++nodes_in_bodies_ > kMaxNodesInBodies) {
    return Unimplemented() << proto.op_type() << ": the bodies and functions of the file have more than "
                           << kMaxNodesInBodies << " nodes, counted as often as they run: too many to compile";
  }
  if (const onnx::FunctionProto* function = FindFunction(proto)) return CallFunction(*function, proto, source);
  if (const auto known = constants_.find(&proto); known != constants_.end())
    return values_.Define(proto.output(0), known->second);
  const Frame& frame = frames_.back();
  ASSIGN_OR_RETURN(const int64_t opset, OpsetOf(proto));
  ASSIGN_OR_RETURN(const OnnxOp* op, FindOnnxOp(proto.domain(), proto.op_type(), opset));
  RETURN_IF_ERROR(CheckInputs(proto, op->min_inputs, op->max_inputs, op->takes_any_kind));
  // A copy, because importing bodies grows the list of frames.
  const OnnxAttributes call = frame.attributes;
  OnnxNode node(proto, source, opset, call, *this);
  builder_.set_source(source);
  if (const absl::Status status = Convert(*op, node); !status.ok()) {
    // An error of one of our ops names only that op. An error of a node in a body already names the operator.
    const bool is_named = error_has_source_ || absl::StartsWith(status.message(), proto.op_type() + ": ");
    return is_named ? status : Annotate(status, proto.op_type());
  }
  RETURN_IF_ERROR(DefineOutputs(proto, node));
  if (in_body && IsConstant(proto) && !proto.output(0).empty())
    constants_.emplace(&proto, values_.Get(proto.output(0)));
  return absl::OkStatus();
}

absl::StatusOr<int64_t> SubgraphImporter::OpsetOf(const onnx::NodeProto& proto) const {
  const Frame& frame = frames_.back();
  if (IsDefaultDomain(proto.domain())) return frame.opset;
  for (const onnx::OperatorSetIdProto& id : *frame.opsets) {
    if (id.domain() == proto.domain()) return id.version();
  }
  return InvalidArgument() << "operator " << proto.op_type() << " of domain " << proto.domain() << ": "
                           << (frame.function ? "the function " + NameOf(*frame.function) : "the file")
                           << " does not import this domain";
}

absl::Status SubgraphImporter::Convert(const OnnxOp& op, OnnxNode& node) {
  RETURN_IF_ERROR(op.convert(node));
  RETURN_IF_ERROR(builder_.status());
  RETURN_IF_ERROR(node.CheckAllAttributesAsked());
  return FoldNewNodes();
}

absl::Status SubgraphImporter::ReserveTable(const OnnxNode& n, double entries) {
  table_entries_ += entries;
  if (table_entries_ <= kMaxTableEntries) return absl::OkStatus();
  return n.Unsupported() << "the tables of weights and positions that are computed for the nodes of the file have "
                         << absl::StrFormat("%.0f entries, of which this one has %.0f; expected at most %.0f",
                                            table_entries_, entries, kMaxTableEntries);
}

absl::Status SubgraphImporter::FoldNewNodes() {
  std::list<Node>& nodes = model_.graph.nodes();
  auto it = nodes.end();
  while (it != nodes.begin() && &*std::prev(it) != last_folded_) --it;
  for (; it != nodes.end(); ++it) {
    for (size_t i = 0; i < it->num_results(); ++i) {
      if (it->type(i).num_elements() > kMaxElements)
        return InvalidArgument() << it->op_name() << ": result " << it->type(i) << " is too large";
    }
    RETURN_IF_ERROR(values_.Fold(*it));
    last_folded_ = &*it;
  }
  return absl::OkStatus();
}

absl::Status SubgraphImporter::DefineOutputs(const onnx::NodeProto& proto, const OnnxNode& node) {
  for (int i = 0; i < proto.output_size(); ++i) {
    const std::string& name = proto.output(i);
    if (name.empty()) continue;
    const std::optional<OnnxValue>& output = node.outputs()[static_cast<size_t>(i)];
    if (!output) {
      return Unimplemented() << proto.op_type() << ": output " << i << " ('" << name << "') is not supported";
    }
    RETURN_IF_ERROR(values_.Define(name, *output));
    const Value* value = std::get_if<Value>(&*output);
    // An input, or a value of another node (Identity), keeps its name. In a body the name includes the run.
    if (value == nullptr || value->node->source() != node.source() || value->node->is_input()) continue;
    model_.graph.SetName(*value, NameIn(values_.place(), name));
  }
  return absl::OkStatus();
}

absl::StatusOr<std::vector<OnnxValue>> SubgraphImporter::GetAll(
    const google::protobuf::RepeatedPtrField<std::string>& names, const std::string& whose) {
  std::vector<OnnxValue> values;
  for (const std::string& name : names) {
    if (!values_.Has(name)) return InvalidArgument() << whose << " '" << name << "' is not computed by any node";
    values.push_back(values_.GetAny(name));
    RETURN_IF_ERROR(builder_.status());
  }
  return values;
}

// --- Bodies ----------------------------------------------------------------------------------------------------------

absl::StatusOr<std::vector<OnnxValue>> SubgraphImporter::ImportBody(const OnnxNode& n, const onnx::GraphProto& body,
                                                                    std::vector<OnnxValue> inputs,
                                                                    const std::string& run) {
  if (frames_.size() > kMaxNesting) return n.Unsupported() << "bodies and functions nest deeper than " << kMaxNesting;
  RETURN_IF_ERROR(builder_.status());
  RETURN_IF_ERROR(FoldNewNodes());  // values that the node has built for the body, such as the iteration number
  const Level level(*this, frames_.back(), n.source() + run + "/", /*sees_outer=*/true);
  RETURN_IF_ERROR(DefineBodyInputs(n, body, std::move(inputs)));
  RETURN_IF_ERROR(DefineBodyInitializers(n, body));
  RETURN_IF_ERROR(AddNodes(body.node()));
  google::protobuf::RepeatedPtrField<std::string> outputs;
  for (const onnx::ValueInfoProto& output : body.output()) *outputs.Add() = output.name();
  return GetAll(outputs, n.op_type() + ": the body's output");
}

absl::Status SubgraphImporter::DefineBodyInputs(const OnnxNode& n, const onnx::GraphProto& body,
                                                std::vector<OnnxValue> inputs) {
  std::set<std::string> initializers;
  for (const onnx::TensorProto& tensor : body.initializer()) initializers.insert(tensor.name());
  // Files of IR version 3 list initializers among the inputs; in later versions an initializer is the default of an
  // input.
  std::vector<std::string> required, all;
  for (const onnx::ValueInfoProto& input : body.input()) {
    all.push_back(input.name());
    if (!initializers.count(input.name())) required.push_back(input.name());
  }
  const std::vector<std::string>& names = all.size() == inputs.size() ? all : required;
  if (names.size() != inputs.size()) {
    return n.Error() << "the body has " << names.size() << " inputs, expected " << inputs.size();
  }
  for (size_t i = 0; i < names.size(); ++i) RETURN_IF_ERROR(values_.Define(names[i], std::move(inputs[i])));
  return absl::OkStatus();
}

// All are constants: trained parameters are in the file's graph.
absl::Status SubgraphImporter::DefineBodyInitializers(const OnnxNode& n, const onnx::GraphProto& body) {
  if (body.sparse_initializer_size() > 0) return n.Unsupported() << "sparse initializers are not supported";
  std::set<std::string> given;
  for (const onnx::ValueInfoProto& input : body.input()) given.insert(input.name());
  for (const onnx::TensorProto& tensor : body.initializer()) {
    if (given.count(tensor.name()) && values_.IsInInnermost(tensor.name())) continue;
    auto known = constants_.find(&tensor);
    if (known == constants_.end()) {
      absl::StatusOr<Tensor> value = DecodeTensor(tensor);
      if (!value.ok()) return Annotate(value.status(), "initializer '" + tensor.name() + "'");
      if (IsFloat(value->dtype()) && value->shape().rank() > 0) {
        model_.notes.push_back("Initializer '" + tensor.name() + "' in a body of " + n.source() +
                               " is a constant: only initializers of the file's graph can be trained.");
      }
      RETURN_IF_ERROR(values_.DefineConstant(tensor.name(), *std::move(value)));
      constants_.emplace(&tensor, values_.Get(tensor.name()));
      RETURN_IF_ERROR(builder_.status());
    } else {
      RETURN_IF_ERROR(values_.Define(tensor.name(), known->second));
    }
  }
  return absl::OkStatus();
}

// --- Functions -------------------------------------------------------------------------------------------------------

const onnx::FunctionProto* SubgraphImporter::FindFunction(const onnx::NodeProto& call) const {
  const auto found = functions_.find(KeyOf(call.domain(), call.op_type(), call.overload()));
  return found == functions_.end() ? nullptr : found->second;
}

absl::StatusOr<SubgraphImporter::Frame> SubgraphImporter::FrameOf(const onnx::FunctionProto& function,
                                                                  const onnx::NodeProto& call) const {
  const Frame& caller = frames_.back();
  const auto opset = DefaultOpset(function.opset_import());
  if (!opset.ok()) return InvalidArgument() << NameOf(function) << " " << opset.status().message();
  Frame frame{&function.opset_import(), *opset != 0 ? *opset : caller.opset, &function, {}};
  if (frame.opset < kOldestOpset || frame.opset > kNewestOpset) {
    return Unimplemented() << NameOf(function) << " uses opset " << frame.opset
                           << " of the domain ai.onnx; supported are " << kOldestOpset << " to " << kNewestOpset;
  }
  std::set<std::string> names(function.attribute().begin(), function.attribute().end());
  for (const onnx::AttributeProto& attribute : function.attribute_proto()) {
    names.insert(attribute.name());
    frame.attributes[attribute.name()] = &attribute;
  }
  for (const onnx::AttributeProto& attribute : call.attribute()) {
    if (!names.count(attribute.name()))
      return InvalidArgument() << NameOf(function) << ": the function has no attribute " << attribute.name();
    if (attribute.ref_attr_name().empty()) {
      frame.attributes[attribute.name()] = &attribute;
    } else if (const auto it = caller.attributes.find(attribute.ref_attr_name()); it != caller.attributes.end()) {
      frame.attributes[attribute.name()] = it->second;
    }
  }
  return frame;
}

absl::Status SubgraphImporter::CallFunction(const onnx::FunctionProto& function, const onnx::NodeProto& call,
                                            const std::string& source) {
  for (const Frame& frame : frames_) {
    if (frame.function == &function)
      return InvalidArgument() << NameOf(function) << ": the function calls itself, directly or through others";
  }
  if (frames_.size() > kMaxNesting)
    return Unimplemented() << NameOf(function) << ": bodies and functions nest deeper than " << kMaxNesting;
  if (call.output_size() > function.output_size()) {
    return InvalidArgument() << NameOf(function) << ": " << call.output_size() << " outputs, the function has "
                             << function.output_size();
  }
  RETURN_IF_ERROR(CheckInputs(call, 0, function.input_size(), /*takes_any_kind=*/true));
  ASSIGN_OR_RETURN(Frame frame, FrameOf(function, call));
  std::vector<OnnxValue> inputs(static_cast<size_t>(function.input_size()));
  for (int i = 0; i < std::min(call.input_size(), function.input_size()); ++i) {
    if (!call.input(i).empty()) inputs[static_cast<size_t>(i)] = values_.GetAny(call.input(i));
  }
  RETURN_IF_ERROR(builder_.status());
  absl::StatusOr<std::vector<OnnxValue>> outputs;
  {
    const Level level(*this, std::move(frame), source + "/", /*sees_outer=*/false);
    for (int i = 0; i < function.input_size(); ++i)
      RETURN_IF_ERROR(values_.Define(function.input(i), std::move(inputs[static_cast<size_t>(i)])));
    RETURN_IF_ERROR(AddNodes(function.node()));
    outputs = GetAll(function.output(), NameOf(function) + ": the function's output");
  }
  RETURN_IF_ERROR(outputs.status());
  for (int i = 0; i < call.output_size(); ++i) {
    if (call.output(i).empty()) continue;
    RETURN_IF_ERROR(values_.Define(call.output(i), std::move((*outputs)[static_cast<size_t>(i)])));
  }
  return absl::OkStatus();
}

}  // namespace lockstep
