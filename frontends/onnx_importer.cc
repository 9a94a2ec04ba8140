#include "frontends/onnx_importer.h"

#include <algorithm>
#include <filesystem>
#include <set>
#include <utility>

#include "absl/strings/match.h"
#include "absl/strings/str_join.h"
#include "core/builder.h"
#include "core/random.h"
#include "core/text.h"
#include "frontends/onnx/model_file.h"
#include "frontends/onnx/subgraph.h"
#include "frontends/onnx/tensor_data.h"
#include "frontends/onnx/values.h"

namespace lockstep {
namespace {

using Dims = std::map<std::string, int64_t>;

// The names by which `dims` can refer to dimensions of the inputs: symbols and places ("x:0").
struct DimNames {
  std::set<std::string> symbols, places;
};

std::string PlaceOf(const onnx::ValueInfoProto& input, int dim) { return input.name() + ":" + std::to_string(dim); }

absl::Status CheckGivenType(const std::string& input, const TensorType& type, const Tensor& value) {
  if (value.type() == type) return absl::OkStatus();
  return InvalidArgument() << "values: input '" << input << "' is " << type << ", its value " << value.type();
}

// Adds the names that the nodes and outputs of a graph use, including nodes in bodies, which see the graph around them.
void AddUsedNames(const onnx::GraphProto& graph, std::set<std::string>& used) {
  for (const onnx::NodeProto& node : graph.node()) {
    used.insert(node.input().begin(), node.input().end());
    for (const onnx::AttributeProto& attribute : node.attribute()) {
      if (attribute.has_g()) AddUsedNames(attribute.g(), used);
    }
  }
  for (const onnx::ValueInfoProto& output : graph.output()) used.insert(output.name());
}

// The kind of each initializer in the PyTorch module, by name: "PARAMETER", "BUFFER" or "CONSTANT_TENSOR"
// (torch.export.graph_signature.InputKind). The exporter writes it to the tensor's metadata, or, for external data, to
// that of the value info.
std::map<std::string, std::string> KindsInModule(const onnx::GraphProto& graph) {
  std::map<std::string, std::string> kinds;
  const auto add = [&](const auto& protos) {
    for (const auto& proto : protos) {
      for (const onnx::StringStringEntryProto& each : proto.metadata_props()) {
        if (each.key() == "pkg.torch.export.graph_signature.InputSpec.kind") kinds.emplace(proto.name(), each.value());
      }
    }
  };
  add(graph.initializer());
  add(graph.value_info());
  return kinds;
}

// Adds the names of running statistics, including those in bodies. They are buffers of a module that training changes.
void AddStatistics(const onnx::GraphProto& graph, std::set<std::string>& statistics) {
  for (const onnx::NodeProto& node : graph.node()) {
    if (node.op_type() == "BatchNormalization" && IsDefaultDomain(node.domain()) && node.input_size() == 5)
      statistics.insert({node.input(3), node.input(4)});
    for (const onnx::AttributeProto& attribute : node.attribute()) {
      if (attribute.has_g()) AddStatistics(attribute.g(), statistics);
    }
  }
}

// One import. Its public functions are called in the order of their declarations.
class Importer {
 public:
  Importer(ModelFile file, const std::string& path)
      : file_(std::move(file)),
        builder_(model_.graph),
        values_(builder_),
        nodes_(file_.model, file_.opset, builder_, values_, model_) {
    model_.origin.file = path;
    const std::string& name = file_.model.graph().name();
    model_.graph.set_name(name.empty() ? std::filesystem::path(path).stem().string() : name);
  }

  absl::Status CheckFile();
  absl::Status AddInputs(const ImportOptions& options);
  absl::Status AddInitializers(const ImportOptions& options);
  absl::Status AddNodes() { return nodes_.AddNodes(graph_proto().node()); }
  absl::Status AddResults(const ImportOptions& options);
  absl::Status FixInputs(const ImportOptions& options);
  ImportedModel Finish(const ImportOptions& options);

 private:
  absl::StatusOr<int64_t> BindDimension(const onnx::ValueInfoProto& input, int i, const Dims& dims,
                                        DimNames& names) const;
  absl::StatusOr<TensorType> BindInput(const onnx::ValueInfoProto& input, const Dims& dims, DimNames& names) const;
  PlacementMap PlacementsOf(const onnx::ValueInfoProto& input, const ImportOptions& options) const;
  absl::Status CheckIsInput(std::string_view option, const std::string& name) const;
  absl::Status GiveValue(Value input, const ImportOptions& options);
  absl::Status CheckOptions(const ImportOptions& options, const DimNames& names) const;
  absl::Status AddInitializer(onnx::TensorProto& proto, const ImportOptions& options);
  absl::Status InlineData(onnx::TensorProto& proto);
  bool IsComputedByExporter(const std::string& name) const;
  bool IsNoState(const std::string& name, const Tensor& value, const ImportOptions& options) const;
  void RemoveUnused(const ImportOptions& options);
  void NoteConstants();
  void NoteComputedStates();

  const onnx::GraphProto& graph_proto() const { return file_.model.graph(); }

  ModelFile file_;
  ImportedModel model_;
  Builder builder_;
  OnnxValues values_;
  SubgraphImporter nodes_;
  std::set<std::string> initializers_, statistics_;
  std::map<std::string, std::string> kinds_;  // KindsInModule
  std::vector<std::string> constant_names_;   // the float initializers that are constants
};

absl::Status Importer::CheckFile() {
  if (graph_proto().sparse_initializer_size() > 0) return Unimplemented() << "sparse initializers are not supported";
  RETURN_IF_ERROR(CheckNames(file_.model));
  ToInferenceForm(*file_.model.mutable_graph(), model_.notes);
  return absl::OkStatus();
}

absl::StatusOr<int64_t> Importer::BindDimension(const onnx::ValueInfoProto& input, int i, const Dims& dims,
                                                DimNames& names) const {
  const std::string who = "input '" + input.name() + "'", place = PlaceOf(input, i);
  const onnx::TensorShapeProto::Dimension& dim = input.type().tensor_type().shape().dim(i);
  names.places.insert(place);
  if (!dim.dim_param().empty()) names.symbols.insert(dim.dim_param());
  auto given = dims.find(place);
  if (given == dims.end() && !dim.has_dim_value()) {
    given = dims.find(dim.dim_param());
    if (dim.dim_param().empty()) {
      return InvalidArgument() << who << ": dimension " << i << " has neither an extent nor a name; give it in dims by "
                               << "its place, as in dims={\"" << place << "\": 128}";
    }
    if (given == dims.end()) {
      return InvalidArgument() << who << ": dimension " << i << " ('" << dim.dim_param()
                               << "') has no extent; give it in dims, as in dims={\"" << dim.dim_param() << "\": 128}";
    }
  }
  if (given == dims.end()) return dim.dim_value();
  if (given->second >= 1) return given->second;
  return InvalidArgument() << "dims: '" << given->first << "' is " << given->second << ", expected at least 1";
}

absl::StatusOr<TensorType> Importer::BindInput(const onnx::ValueInfoProto& input, const Dims& dims,
                                               DimNames& names) const {
  const std::string who = "input '" + input.name() + "'";
  if (!input.type().has_tensor_type())
    return Unimplemented() << who << " is not a tensor; sequences and optionals are not supported as inputs";
  const onnx::TypeProto::Tensor& type = input.type().tensor_type();
  if (!type.has_shape()) return InvalidArgument() << who << " has no shape";
  absl::StatusOr<DType> dtype = DTypeFromOnnx(type.elem_type());
  if (!dtype.ok()) return Annotate(dtype.status(), who);
  std::vector<int64_t> extents;
  int64_t elements = 1;
  for (int i = 0; i < type.shape().dim_size(); ++i) {
    ASSIGN_OR_RETURN(const int64_t extent, BindDimension(input, i, dims, names));
    if (extent < 0 || extent > kMaxElements || (elements *= std::max<int64_t>(extent, 1)) > kMaxElements) {
      return InvalidArgument() << who << ": dimension " << i << " is " << extent << ", which is negative or too large";
    }
    extents.push_back(extent);
  }
  return TensorType{*dtype, Shape(std::move(extents))};
}

// The placement of an input: the dimension along which it is split between ranks.
PlacementMap Importer::PlacementsOf(const onnx::ValueInfoProto& input, const ImportOptions& options) const {
  const auto& shape = input.type().tensor_type().shape();
  const auto split = [](int64_t dim) { return PlacementMap{{std::string(kDataAxis), Placement::Split(dim)}}; };
  if (options.split) {
    const auto it = options.split->find(input.name());
    return it == options.split->end() ? PlacementMap() : split(it->second);
  }
  const bool is_batch =
      shape.dim_size() > 0 && (!shape.dim(0).dim_param().empty() || options.dims.count(PlaceOf(input, 0)) > 0);
  return is_batch ? split(0) : PlacementMap();
}

absl::Status Importer::CheckIsInput(std::string_view option, const std::string& name) const {
  if (model_.graph.FindInput(name)) return absl::OkStatus();
  std::vector<std::string> inputs;
  for (const Input& each : model_.graph.inputs()) inputs.push_back(each.name());
  return InvalidArgument() << option << ": there is no input '" << name << "'; the model's inputs are "
                           << absl::StrJoin(inputs, ", ");
}

// Returns an error if an option names something that does not exist.
absl::Status Importer::CheckOptions(const ImportOptions& options, const DimNames& names) const {
  for (const auto& [name, extent] : options.dims) {
    if (names.symbols.count(name) || names.places.count(name)) continue;
    return InvalidArgument() << "dims: there is no symbolic dimension '" << name << "'; the model's inputs have "
                             << (names.symbols.empty() ? "none" : "'" + absl::StrJoin(names.symbols, "', '") + "'")
                             << (names.places.empty() ? "" : ", and by place " + absl::StrJoin(names.places, ", "));
  }
  std::set<std::string> defaults;  // initializers that are inputs too
  for (const onnx::ValueInfoProto& input : graph_proto().input()) {
    if (initializers_.count(input.name())) defaults.insert(input.name());
  }
  for (const auto& [name, value] : options.values) {
    if (!defaults.count(name)) RETURN_IF_ERROR(CheckIsInput("values", name));
  }
  for (const std::string& name : options.constants) {
    if (!initializers_.count(name)) return InvalidArgument() << "constants: there is no initializer '" << name << "'";
  }
  for (const std::string& name : options.states) {
    if (!initializers_.count(name)) return InvalidArgument() << "states: there is no initializer '" << name << "'";
    if (options.constants.count(name))
      return InvalidArgument() << "constants and states: '" << name << "' is in both, expected in one of them";
  }
  if (!options.split) return absl::OkStatus();
  for (const auto& [name, dim] : *options.split) {
    RETURN_IF_ERROR(CheckIsInput("split", name));
    const Input* input = model_.graph.FindInput(name);
    if (!input->value.shape().has_dim(dim)) {
      return InvalidArgument() << "split: input '" << name << "' is " << input->value.type() << ", without a dimension "
                               << dim;
    }
  }
  return absl::OkStatus();
}

absl::Status Importer::AddInputs(const ImportOptions& options) {
  // Files of IR version 3 list initializers among the inputs.
  for (const onnx::TensorProto& tensor : graph_proto().initializer()) initializers_.insert(tensor.name());
  DimNames names;
  for (const onnx::ValueInfoProto& input : graph_proto().input()) {
    if (initializers_.count(input.name())) continue;
    ASSIGN_OR_RETURN(TensorType type, BindInput(input, options.dims, names));
    ASSIGN_OR_RETURN(const Value value, model_.graph.AddInput(input.name(), std::move(type), /*is_state=*/false,
                                                              PlacementsOf(input, options)));
    RETURN_IF_ERROR(values_.Define(input.name(), value));
    RETURN_IF_ERROR(GiveValue(value, options));
  }
  return CheckOptions(options, names);
}

absl::Status Importer::GiveValue(Value input, const ImportOptions& options) {
  const auto given = options.values.find(input.name());
  if (given == options.values.end()) return absl::OkStatus();
  RETURN_IF_ERROR(CheckGivenType(input.name(), input.type(), given->second));
  values_.SetGivenValue(input.name(), input, given->second);
  return absl::OkStatus();
}

// PyTorch's exporter, if it optimizes, calls values that it computed "val_67". With one element, such a value is a
// scale or an epsilon; a larger one may be a weight that the exporter transposed, or a table.
bool Importer::IsComputedByExporter(const std::string& name) const {
  const bool is_numbered = absl::StartsWith(name, "val_") && name.size() > 4 &&
                           std::all_of(name.begin() + 4, name.end(), [](char c) { return c >= '0' && c <= '9'; });
  return is_numbered && file_.model.producer_name() == "pytorch";
}

bool Importer::IsNoState(const std::string& name, const Tensor& value, const ImportOptions& options) const {
  if (options.states.count(name)) return false;
  if (options.constants.count(name)) return true;
  if (const auto kind = kinds_.find(name); kind != kinds_.end())
    return kind->second != "PARAMETER" && !statistics_.count(name);
  return value.shape().rank() == 0 || (value.num_elements() == 1 && IsComputedByExporter(name));
}

absl::Status Importer::AddInitializers(const ImportOptions& options) {
  std::set<std::string> used;
  AddUsedNames(graph_proto(), used);
  AddStatistics(graph_proto(), statistics_);
  kinds_ = KindsInModule(graph_proto());
  for (onnx::TensorProto& proto : *file_.model.mutable_graph()->mutable_initializer()) {
    const bool is_kept = used.count(proto.name()) > 0 || options.states.count(proto.name()) > 0;
    const absl::Status status = is_kept ? AddInitializer(proto, options) : InlineData(proto);
    if (!status.ok()) return Annotate(status, "initializer '" + proto.name() + "'");
  }
  return absl::OkStatus();
}

// An exported file must contain the data of all initializers that are not parameters.
absl::Status Importer::InlineData(onnx::TensorProto& proto) {
  return file_.path ? InlineExternalData(*file_.path, proto) : absl::OkStatus();
}

absl::Status Importer::AddInitializer(onnx::TensorProto& proto, const ImportOptions& options) {
  const std::string& name = proto.name();
  ASSIGN_OR_RETURN(Tensor tensor, DecodeTensor(proto, file_.path));
  if (const auto given = options.values.find(name); given != options.values.end()) {
    RETURN_IF_ERROR(CheckGivenType(name, tensor.type(), given->second));
    tensor = given->second;
  }
  if (!IsFloat(tensor.dtype()) && options.states.count(name))
    return InvalidArgument() << "is " << tensor.type() << ", but `states` have to be floats";
  if (!IsFloat(tensor.dtype()) || IsNoState(name, tensor, options)) {
    if (IsFloat(tensor.dtype())) constant_names_.push_back(name);
    RETURN_IF_ERROR(InlineData(proto));
    return values_.DefineConstant(name, std::move(tensor));
  }
  ASSIGN_OR_RETURN(const Value state, model_.graph.AddInput(name, tensor.type(), /*is_state=*/true));
  RETURN_IF_ERROR(values_.Define(name, state));
  if (!kinds_.count(name) && !options.states.count(name) && !statistics_.count(name))
    model_.unmarked_parameters.push_back(name);
  ClearData(proto);  // so that a large model is not in memory twice
  values_.SetInitialValue(state, &model_.parameters.emplace(name, std::move(tensor)).first->second);
  return absl::OkStatus();
}

absl::Status Importer::AddResults(const ImportOptions& options) {
  for (const onnx::ValueInfoProto& output : graph_proto().output()) {
    if (!values_.Has(output.name()))
      return InvalidArgument() << "output '" << output.name() << "' is not computed by any node";
    if (!values_.IsTensor(output.name())) {
      return Unimplemented() << "output '" << output.name() << "' is " << KindOf(values_.GetAny(output.name()))
                             << ", expected a tensor (ConcatFromSequence and SequenceAt make one of a sequence)";
    }
    const Value value = values_.Get(output.name());
    RETURN_IF_ERROR(builder_.status());
    RETURN_IF_ERROR(model_.graph.AddResult(output.name(), value));
  }
  if (model_.graph.results().empty()) return InvalidArgument() << "the graph has no outputs";
  RemoveUnused(options);
  return absl::OkStatus();
}

// Replaces each input on whose value the program depends by a constant, so that no call can give it another value.
absl::Status Importer::FixInputs(const ImportOptions& options) {
  for (const std::string& name : values_.relied_upon()) {
    const Value input = model_.graph.FindInput(name)->value;
    if (model_.graph.IsUsed(input)) {
      Builder at_start(model_.graph, &model_.graph.nodes().front(), "onnx:" + name);
      const Value constant = at_start.Constant(options.values.at(name));
      RETURN_IF_ERROR(at_start.status());
      model_.graph.ReplaceUses(input, constant);
    }
    RETURN_IF_ERROR(model_.graph.RemoveInput(name));
    model_.fixed_inputs.push_back(name);
  }
  return absl::OkStatus();
}

// Removes nodes and states that are not used, such as those that were folded into attributes.
void Importer::RemoveUnused(const ImportOptions& options) {
  std::vector<Node*> nodes;
  for (Node& node : model_.graph.nodes()) nodes.push_back(&node);
  std::for_each(nodes.rbegin(), nodes.rend(), [&](Node* node) {
    bool used = false;
    for (size_t i = 0; i < node->num_results(); ++i) used = used || model_.graph.IsUsed(node->result(i));
    if (!used) model_.graph.Erase(node);
  });
  RemoveUnusedRandomStates(model_.graph);
  std::vector<std::string> unused;
  for (const Input& input : model_.graph.inputs()) {
    if (input.is_state && !options.states.count(input.name()) && !model_.graph.IsUsed(input.value))
      unused.push_back(input.name());
  }
  for (const std::string& name : unused) {
    LOCKSTEP_CHECK(model_.graph.RemoveInput(name).ok()) << name;
    for (onnx::TensorProto& proto : *file_.model.mutable_graph()->mutable_initializer()) {
      if (proto.name() == name) EncodeTensor(model_.parameters.at(name), proto);
    }
    model_.parameters.erase(name);
    std::erase(model_.unmarked_parameters, name);
  }
}

// Records the float initializers that the graph uses as constants, by the names of the constants.
void Importer::NoteConstants() {
  for (const std::string& name : constant_names_) {
    if (values_.IsUndefinedConstant(name)) continue;  // folded into an attribute, or used by nothing
    const Value value = values_.Get(name);
    for (const Node& node : model_.graph.nodes()) {
      if (&node == value.node) model_.constants.push_back(value.name());
    }
  }
  if (model_.constants.empty()) return;
  model_.notes.push_back("Float initializers that became constants: " + absl::StrJoin(model_.constants, ", ") +
                         " (`trained` of a training step can make them states).");
}

void Importer::NoteComputedStates() {
  std::vector<std::string> computed;
  for (const auto& [name, value] : model_.parameters) {
    if (IsComputedByExporter(name)) computed.push_back(name);
  }
  if (computed.empty()) return;
  model_.notes.push_back(
      "PyTorch's exporter computed " + absl::StrJoin(computed, ", ") +
      ": transposed weights, or tables, which are not parameters. All are states, except those named in `constants` of "
      "the import. A file exported with optimize=False has none.");
}

ImportedModel Importer::Finish(const ImportOptions& options) {
  NoteConstants();
  NoteComputedStates();
  for (const auto& property : file_.model.metadata_props()) {
    constexpr std::string_view kPrefix = "lockstep.", kNote = "lockstep.note.";
    if (property.key().starts_with(kNote)) model_.notes.push_back(property.value());
    else if (property.key().starts_with(kPrefix))
      model_.metadata.emplace(property.key().substr(kPrefix.size()), property.value());
  }
  model_.origin.model = file_.model.SerializeAsString();
  model_.origin.options = options;
  return std::move(model_);
}

absl::StatusOr<ImportedModel> Import(absl::StatusOr<ModelFile> file, const std::string& path,
                                     const ImportOptions& options) {
  RETURN_IF_ERROR(file.status());
  Importer importer(*std::move(file), path);
  RETURN_IF_ERROR(importer.CheckFile());
  RETURN_IF_ERROR(importer.AddInputs(options));
  RETURN_IF_ERROR(importer.AddInitializers(options));
  RETURN_IF_ERROR(importer.AddNodes());
  RETURN_IF_ERROR(importer.AddResults(options));
  RETURN_IF_ERROR(importer.FixInputs(options));
  return importer.Finish(options);
}

// Makes an error message valid text: it may contain bytes from the file that are not.
absl::Status ErrorOfFile(const absl::Status& status, const std::string& name) {
  return absl::Status(status.code(), ToValidText(name + ": " + std::string(status.message())));
}

}  // namespace

absl::StatusOr<ImportedModel> ImportOnnx(const std::string& path, const ImportOptions& options) {
  absl::StatusOr<ImportedModel> model = Import(ReadModelFile(path), path, options);
  if (!model.ok()) return ErrorOfFile(model.status(), path);
  return model;
}

absl::StatusOr<ImportedModel> ImportOnnxBytes(std::string_view bytes, const std::string& name,
                                              const ImportOptions& options) {
  absl::StatusOr<ImportedModel> model = Import(ReadModelBytes(bytes), name, options);
  if (!model.ok()) return ErrorOfFile(model.status(), name);
  return model;
}

absl::StatusOr<ImportedModel> ImportWithDims(const OnnxOrigin& origin, const std::map<std::string, Tensor>& parameters,
                                             const std::map<std::string, int64_t>& dims) {
  ImportOptions options = origin.options;
  absl::StatusOr<ModelFile> file = ReadModelBytes(origin.model);
  if (file.ok()) {
    for (const auto& property : file->model.metadata_props()) {
      if (property.key() != "lockstep.extents" || dims == origin.options.dims) continue;
      return FailedPrecondition() << "with_dims: the module was exported only for the extents of its example inputs; "
                                  << "export it again for others";
    }
    for (const onnx::ValueInfoProto& input : file->model.graph().input()) {
      const auto& shape = input.type().tensor_type().shape();
      for (int i = 0; i < shape.dim_size(); ++i) {  // the extent given for the name now replaces the one given by place
        if (dims.count(shape.dim(i).dim_param()) > 0) options.dims.erase(PlaceOf(input, i));
      }
    }
    for (onnx::TensorProto& tensor : *file->model.mutable_graph()->mutable_initializer()) {
      const auto value = parameters.find(tensor.name());
      if (value != parameters.end()) EncodeTensor(value->second, tensor);
    }
  }
  for (const auto& [name, extent] : dims) options.dims.insert_or_assign(name, extent);
  absl::StatusOr<ImportedModel> model = Import(std::move(file), origin.file, options);
  if (!model.ok()) return ErrorOfFile(model.status(), origin.file);
  return model;
}

}  // namespace lockstep
