#include "frontends/onnx/model_file.h"

#include <filesystem>
#include <fstream>
#include <functional>
#include <limits>
#include <map>
#include <set>
#include <system_error>

#include "core/text.h"
#include "frontends/onnx/tensor_data.h"

namespace lockstep {
namespace {

using VisitTensor = std::function<absl::Status(onnx::TensorProto&)>;

absl::StatusOr<std::string> ReadBytes(const std::string& path) {
  std::error_code error;
  const std::filesystem::file_status status = std::filesystem::status(path, error);
  if (!std::filesystem::exists(status)) return NotFound() << "there is no such file";
  if (!std::filesystem::is_regular_file(status)) return InvalidArgument() << "is not a file";
  const uint64_t size = std::filesystem::file_size(path, error);
  if (error) return NotFound() << error.message();
  if (size > static_cast<uint64_t>(std::numeric_limits<int>::max())) {
    return InvalidArgument()
           << "has " << size
           << " bytes; an ONNX file has less than 2 GiB (larger models keep their data in other files)";
  }
  std::string bytes(size, '\0');
  std::ifstream file(path, std::ios::binary);
  file.read(bytes.data(), static_cast<std::streamsize>(size));
  if (!file) return NotFound() << "cannot be read";
  return bytes;
}

absl::StatusOr<int64_t> CheckVersions(const onnx::ModelProto& model) {
  if (!model.has_ir_version() || !model.has_graph()) {
    return InvalidArgument() << "is not an ONNX model: it has no " << (model.has_graph() ? "IR version" : "graph");
  }
  if (model.ir_version() < kOldestIrVersion || model.ir_version() > kNewestIrVersion) {
    return Unimplemented() << "has IR version " << model.ir_version() << "; supported are " << kOldestIrVersion
                           << " to " << kNewestIrVersion;
  }
  ASSIGN_OR_RETURN(const int64_t opset, DefaultOpset(model.opset_import()));
  if (opset == 0) return InvalidArgument() << "imports no operator set of the domain ai.onnx";
  if (opset < kOldestOpset || opset > kNewestOpset) {
    return Unimplemented() << "uses opset " << opset << " of the domain ai.onnx; supported are " << kOldestOpset
                           << " to " << kNewestOpset;
  }
  return opset;
}

absl::Status ForEachTensor(onnx::GraphProto& graph, const VisitTensor& visit);

// Bodies nest no deeper than the parser of the file allows.
absl::Status ForEachTensor(google::protobuf::RepeatedPtrField<onnx::NodeProto>& nodes, const VisitTensor& visit) {
  for (onnx::NodeProto& node : nodes) {
    for (onnx::AttributeProto& attribute : *node.mutable_attribute()) {
      const std::string where = "node " + node.name() + ", attribute " + attribute.name();
      if (attribute.has_t()) RETURN_IF_ERROR(Annotate(visit(*attribute.mutable_t()), where));
      if (attribute.has_g()) RETURN_IF_ERROR(Annotate(ForEachTensor(*attribute.mutable_g(), visit), where));
    }
  }
  return absl::OkStatus();
}

absl::Status ForEachTensor(onnx::GraphProto& graph, const VisitTensor& visit) {
  for (onnx::TensorProto& tensor : *graph.mutable_initializer())
    RETURN_IF_ERROR(Annotate(visit(tensor), "initializer " + tensor.name()));
  return ForEachTensor(*graph.mutable_node(), visit);
}

absl::Status ForEachTensorOfFunctions(onnx::ModelProto& model, const VisitTensor& visit) {
  for (onnx::FunctionProto& function : *model.mutable_functions())
    RETURN_IF_ERROR(Annotate(ForEachTensor(*function.mutable_node(), visit), "function " + function.name()));
  return absl::OkStatus();
}

// Calls `visit` with each tensor of the file; errors are annotated with the place of the tensor.
absl::Status ForEachTensor(onnx::ModelProto& model, const VisitTensor& visit) {
  RETURN_IF_ERROR(ForEachTensor(*model.mutable_graph(), visit));
  return ForEachTensorOfFunctions(model, visit);
}

absl::StatusOr<ModelFile> Parse(std::string_view bytes) {
  ModelFile file;
  if (bytes.size() > static_cast<size_t>(std::numeric_limits<int>::max()) ||
      !file.model.ParseFromArray(bytes.data(), static_cast<int>(bytes.size()))) {
    return InvalidArgument() << "is not an ONNX model, or is damaged or truncated";
  }
  ASSIGN_OR_RETURN(file.opset, CheckVersions(file.model));
  return file;
}

onnx::NodeProto IdentityNode(const std::string& input, const std::string& output) {
  onnx::NodeProto node;
  node.set_op_type("Identity");
  node.add_input(input);
  node.add_output(output);
  return node;
}

// Makes a batch normalisation use its running statistics. Its other outputs become these statistics, as in inference.
void NormalizeWithRunningStatistics(onnx::NodeProto& node, std::vector<onnx::NodeProto>& added) {
  for (onnx::AttributeProto& attribute : *node.mutable_attribute()) {
    if (attribute.name() == "training_mode") attribute.set_i(0);
  }
  for (int i = 1; i < node.output_size(); ++i) {
    // Outputs 1 and 2 are the running mean and variance; in opsets before 14, 3 and 4 are those of the batch.
    if (!node.output(i).empty()) added.push_back(IdentityNode(node.input(i % 2 ? 3 : 4), node.output(i)));
  }
  while (node.output_size() > 1) node.mutable_output()->RemoveLast();
}

absl::Status CheckName(std::string_view what, const std::string& name) {
  if (FindInvalidText(name) == std::string_view::npos) return absl::OkStatus();
  return InvalidArgument() << "the name of " << what << " is not valid text (UTF-8 without NUL): '" << ToValidText(name)
                           << "'";
}

absl::Status CheckNamesOf(const onnx::ValueInfoProto& value) {
  RETURN_IF_ERROR(CheckName("an input or output", value.name()));
  for (const onnx::TensorShapeProto::Dimension& dim : value.type().tensor_type().shape().dim())
    RETURN_IF_ERROR(CheckName("a dimension of '" + value.name() + "'", dim.dim_param()));
  return absl::OkStatus();
}

absl::Status CheckGraphNames(const onnx::GraphProto& graph);

absl::Status CheckNodeNames(const google::protobuf::RepeatedPtrField<onnx::NodeProto>& nodes) {
  for (const onnx::NodeProto& node : nodes) {
    RETURN_IF_ERROR(CheckName("a node", node.name()));
    RETURN_IF_ERROR(CheckName("an operator", node.op_type()));
    RETURN_IF_ERROR(CheckName("a domain", node.domain()));
    for (const std::string& name : node.input()) RETURN_IF_ERROR(CheckName("a value", name));
    for (const std::string& name : node.output()) RETURN_IF_ERROR(CheckName("a value", name));
    for (const onnx::AttributeProto& attribute : node.attribute()) {
      if (attribute.has_g()) RETURN_IF_ERROR(CheckGraphNames(attribute.g()));
    }
  }
  return absl::OkStatus();
}

absl::Status CheckGraphNames(const onnx::GraphProto& graph) {
  RETURN_IF_ERROR(CheckName("the graph", graph.name()));
  for (const onnx::ValueInfoProto& input : graph.input()) RETURN_IF_ERROR(CheckNamesOf(input));
  for (const onnx::ValueInfoProto& output : graph.output()) RETURN_IF_ERROR(CheckNamesOf(output));
  for (const onnx::TensorProto& tensor : graph.initializer())
    RETURN_IF_ERROR(CheckName("an initializer", tensor.name()));
  return CheckNodeNames(graph.node());
}

bool HasTrainingForm(const onnx::NodeProto& node) {
  if (node.output_size() > 1) return true;
  for (const onnx::AttributeProto& attribute : node.attribute()) {
    if (attribute.name() == "training_mode" && attribute.i() != 0) return true;
  }
  return false;
}

void DropoutOfNodesToInferenceForm(google::protobuf::RepeatedPtrField<onnx::NodeProto>& nodes) {
  for (onnx::NodeProto& node : nodes) {
    if (node.op_type() == "Dropout" && IsDefaultDomain(node.domain()) && node.input_size() == 3)
      node.mutable_input()->RemoveLast();
    for (onnx::AttributeProto& attribute : *node.mutable_attribute()) {
      if (attribute.has_g()) DropoutOfNodesToInferenceForm(*attribute.mutable_g()->mutable_node());
    }
  }
}

}  // namespace

absl::StatusOr<ModelFile> ReadModelFile(const std::string& path) {
  ASSIGN_OR_RETURN(std::string bytes, ReadBytes(path));
  ASSIGN_OR_RETURN(ModelFile file, Parse(bytes));
  bytes = {};
  file.path = path;
  const auto inline_data = [&](onnx::TensorProto& tensor) { return InlineExternalData(path, tensor); };
  RETURN_IF_ERROR(ForEachTensor(*file.model.mutable_graph()->mutable_node(), inline_data));
  RETURN_IF_ERROR(ForEachTensorOfFunctions(file.model, inline_data));
  return file;
}

absl::StatusOr<ModelFile> ReadModelBytes(std::string_view bytes) {
  ASSIGN_OR_RETURN(ModelFile file, Parse(bytes));
  RETURN_IF_ERROR(ForEachTensor(file.model, [](const onnx::TensorProto& tensor) -> absl::Status {
    if (tensor.data_location() != onnx::TensorProto::EXTERNAL) return absl::OkStatus();
    return InvalidArgument()
           << "its data is in another file, but the model itself is not in a file, so the folder is unknown";
  }));
  return file;
}

absl::StatusOr<int64_t> DefaultOpset(const google::protobuf::RepeatedPtrField<onnx::OperatorSetIdProto>& imports) {
  std::map<std::string, int64_t> opsets = {{"ai.onnx", 0}};  // by domain
  for (const onnx::OperatorSetIdProto& id : imports) {
    RETURN_IF_ERROR(CheckName("a domain", id.domain()));
    const std::string domain = IsDefaultDomain(id.domain()) ? "ai.onnx" : id.domain();
    int64_t& opset = opsets[domain];
    if (opset != 0 && opset != id.version())
      return InvalidArgument() << "imports the domain " << domain << " in opsets " << opset << " and " << id.version();
    opset = id.version();
  }
  return opsets.at("ai.onnx");
}

absl::Status CheckNames(const onnx::ModelProto& model) {
  RETURN_IF_ERROR(CheckGraphNames(model.graph()));
  for (const onnx::FunctionProto& function : model.functions()) {
    RETURN_IF_ERROR(CheckName("a function", function.name()));
    RETURN_IF_ERROR(CheckName("a domain", function.domain()));
    for (const std::string& name : function.input()) RETURN_IF_ERROR(CheckName("a value", name));
    for (const std::string& name : function.output()) RETURN_IF_ERROR(CheckName("a value", name));
    RETURN_IF_ERROR(CheckNodeNames(function.node()));
  }
  return absl::OkStatus();
}

void ToInferenceForm(onnx::GraphProto& graph, std::vector<std::string>& notes) {
  std::set<std::string> initializers;
  for (const onnx::TensorProto& tensor : graph.initializer()) initializers.insert(tensor.name());
  std::vector<onnx::NodeProto> nodes;
  for (onnx::NodeProto& node : *graph.mutable_node()) {
    std::vector<onnx::NodeProto> added;
    if (node.op_type() == "BatchNormalization" && IsDefaultDomain(node.domain()) && node.input_size() == 5 &&
        HasTrainingForm(node) && initializers.count(node.input(3)) && initializers.count(node.input(4))) {
      NormalizeWithRunningStatistics(node, added);
      notes.push_back("BatchNormalization " + node.name() +
                      " was saved in training form; it is imported in inference form.");
    }
    nodes.push_back(std::move(node));
    for (onnx::NodeProto& identity : added) nodes.push_back(std::move(identity));
  }
  graph.clear_node();
  for (onnx::NodeProto& node : nodes) *graph.add_node() = std::move(node);
}

void DropoutToInferenceForm(onnx::ModelProto& model) {
  DropoutOfNodesToInferenceForm(*model.mutable_graph()->mutable_node());
  for (onnx::FunctionProto& function : *model.mutable_functions())
    DropoutOfNodesToInferenceForm(*function.mutable_node());
}

}  // namespace lockstep
