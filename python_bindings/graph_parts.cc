// Conversion between Python's Graph and its parts, facts and tensors, which lockstep/_graph/graph_file.py writes and
// reads.

#include <nanobind/nanobind.h>
#include <nanobind/ndarray.h>
#include <nanobind/stl/map.h>
#include <nanobind/stl/optional.h>
#include <nanobind/stl/pair.h>
#include <nanobind/stl/string.h>
#include <nanobind/stl/tuple.h>
#include <nanobind/stl/vector.h>

#include <algorithm>
#include <cmath>
#include <cstring>

#include "core/printer.h"
#include "core/verifier.h"
#include "python_bindings/arrays.h"
#include "python_bindings/bindings.h"
#include "python_bindings/errors.h"
#include "python_bindings/released_gil.h"

namespace lockstep::python {

namespace nb = nanobind;
using namespace nb::literals;

namespace {

// The names of the tensors: the text form of the graph, and the serialized model of the origin. Followed by a name: the
// initial value of a state, the value of a constant, and the value with which an input was imported.
constexpr char kText[] = "graph", kModel[] = "model";
constexpr std::string_view kState = "state/", kConstant = "constant/", kGiven = "given/";

// Dtype, shape and bytes.
using TensorParts = std::tuple<std::string, std::vector<int64_t>, nb::object>;

Tensor TensorOf(std::string_view bytes) {
  Tensor tensor(TensorType{DType::kU8, Shape({static_cast<int64_t>(bytes.size())})});
  if (!bytes.empty()) std::memcpy(tensor.mutable_bytes(), bytes.data(), bytes.size());
  return tensor;
}

std::string_view BytesOf(const Tensor& tensor) {
  return {reinterpret_cast<const char*>(tensor.bytes()), tensor.num_bytes()};
}

// The array shares the memory of the tensor.
TensorParts PartsOf(const Tensor& tensor) {
  auto* const kept = new Tensor(tensor);
  const nb::capsule owner(kept, [](void* p) noexcept { delete static_cast<Tensor*>(p); });
  const nb::ndarray<nb::numpy, nb::ro, uint8_t> bytes(kept->bytes(), {kept->num_bytes()}, owner);
  return {std::string(DTypeName(tensor.dtype())), tensor.shape().dims(), nb::cast(bytes)};
}

Tensor TensorOf(const std::string& name, const TensorParts& parts) {
  const auto& [dtype, shape, array] = parts;
  const std::optional<DType> known = DTypeFromName(dtype);
  if (!known) ThrowIfError(InvalidArgument() << name << " has the dtype " << dtype << ", which does not exist");
  const Tensor bytes = CopyArray(CastToArray(array, name), name);
  const TensorType type{*known, Shape(shape)};
  if (bytes.num_bytes() != type.num_bytes())
    ThrowIfError(InvalidArgument() << name << " is " << type << ", and has " << bytes.num_bytes() << " bytes");
  Tensor tensor(type);
  if (type.num_bytes() > 0) std::memcpy(tensor.mutable_bytes(), bytes.bytes(), type.num_bytes());
  return tensor;
}

// True if the text form of the tensor is short and keeps all bits, which that of a NaN does not.
bool IsForText(const Tensor& tensor) {
  constexpr int64_t kMostElements = 16;
  const int64_t written =
      tensor.AllElementsEqual() ? std::min<int64_t>(tensor.num_elements(), 1) : tensor.num_elements();
  if (written > kMostElements) return false;
  for (int64_t i = 0; i < written; ++i) {
    if (std::isnan(tensor.At(i))) return false;
  }
  return true;
}

// Returns the text of the graph with large constants set to zero. Adds these to `constants`, by the names of their
// values.
std::string TextWithout(const Graph& whole, std::map<std::string, Tensor>& constants) {
  Graph graph = whole.Clone();
  for (Node& node : graph.nodes()) {
    if (!node.is_constant() || IsForText(node.attr<Tensor>("value"))) continue;
    const Tensor value = node.attr<Tensor>("value");
    ThrowIfError(graph.SetAttribute(&node, "value", Tensor(value.type())));
    constants.emplace(node.result_name(), value);
  }
  return graph.ToString();
}

void SetConstants(Graph& graph, const std::map<std::string, Tensor>& constants) {
  size_t found = 0;
  for (Node& node : graph.nodes()) {
    const auto value = constants.find(node.result_name());
    if (!node.is_constant() || value == constants.end()) continue;
    ThrowIfError(graph.SetAttribute(&node, "value", value->second));
    ++found;
  }
  if (found != constants.size()) ThrowIfError(InvalidArgument() << "a constant has a value but is not in the graph");
}

nb::object OriginFacts(const Model& model) {
  if (!model.origin) return nb::none();
  const ImportOptions& options = model.origin->options;
  nb::dict facts;
  facts["file"] = model.origin->file;
  facts["dims"] = options.dims;
  facts["split"] = options.split;
  facts["constants"] = std::vector<std::string>(options.constants.begin(), options.constants.end());
  facts["states"] = std::vector<std::string>(options.states.begin(), options.states.end());
  return facts;
}

// The facts are values that JSON can represent.
std::pair<nb::dict, std::map<std::string, TensorParts>> GraphParts(const Model& model) {
  std::map<std::string, Tensor> tensors, constants;
  tensors.emplace(kText, TensorOf(TextWithout(model.graph, constants)));
  for (const auto& [name, value] : constants) tensors.emplace(std::string(kConstant) + name, value);
  for (const auto& [name, value] : model.values) tensors.emplace(std::string(kState) + name, value);
  if (model.origin) {
    tensors.emplace(kModel, TensorOf(model.origin->model));
    for (const auto& [name, value] : model.origin->options.values) tensors.emplace(std::string(kGiven) + name, value);
  }
  nb::dict facts;
  facts["origin"] = OriginFacts(model);
  facts["notes"] = model.notes;
  facts["constants"] = model.constants;
  facts["fixed_inputs"] = model.fixed_inputs;
  facts["unmarked_parameters"] = model.unmarked_parameters;
  facts["metadata"] = model.metadata;
  facts["is_imported"] = model.is_imported;
  std::map<std::string, TensorParts> parts;
  for (const auto& [name, tensor] : tensors) parts.emplace(name, PartsOf(tensor));
  return {facts, parts};
}

template <typename T>
T Fact(const nb::dict& facts, const char* name) {
  T fact{};
  if (!nb::try_cast(facts.get(name, nb::none()), fact)) ThrowIfError(InvalidArgument() << "malformed fact " << name);
  return fact;
}

Model GraphOfParts(const nb::dict& facts, const std::map<std::string, TensorParts>& parts) {
  using Names = std::vector<std::string>;
  std::map<std::string, Tensor> states, constants, given;
  std::optional<Tensor> text, serialized;
  for (const auto& [name, each] : parts) {
    Tensor tensor = TensorOf(name, each);
    const size_t end = name.find('/') == std::string::npos ? name.size() : name.find('/') + 1;
    const std::string kind = name.substr(0, end), rest = name.substr(end);
    if (name == kText) text = std::move(tensor);
    else if (name == kModel) serialized = std::move(tensor);
    else if (kind == kState) states.emplace(rest, std::move(tensor));
    else if (kind == kConstant) constants.emplace(rest, std::move(tensor));
    else if (kind == kGiven) given.emplace(rest, std::move(tensor));
    else ThrowIfError(InvalidArgument() << name << " is not a part of a graph");
  }
  if (!text) ThrowIfError(InvalidArgument() << "the text of the graph is missing");
  Model model{ValueOrThrow(ParseGraph(BytesOf(*text))),
              std::move(states),
              nullptr,
              Fact<Names>(facts, "notes"),
              Fact<Names>(facts, "constants"),
              Fact<Names>(facts, "fixed_inputs"),
              Fact<Names>(facts, "unmarked_parameters"),
              Fact<std::map<std::string, std::string>>(facts, "metadata"),
              Fact<bool>(facts, "is_imported")};
  SetConstants(model.graph, constants);
  ThrowIfError(VerifyStructure(model.graph));
  for (const auto& [name, value] : model.values) {
    const Input* input = model.graph.FindInput(name);
    if (input && input->value.type() != value.type())
      ThrowIfError(InvalidArgument() << "the value of state " << name << " is " << value.type() << ", the state "
                                     << input->value.type());
  }
  const auto of_origin = Fact<std::optional<nb::dict>>(facts, "origin");
  if (of_origin.has_value() != serialized.has_value() || (model.is_imported && !serialized))
    ThrowIfError(InvalidArgument() << "the model from which the graph was imported is incomplete");
  if (!serialized) return model;
  const auto learnt = Fact<Names>(*of_origin, "states"), fixed = Fact<Names>(*of_origin, "constants");
  model.origin = std::make_shared<const OnnxOrigin>(
      OnnxOrigin{.file = Fact<std::string>(*of_origin, "file"),
                 .model = std::string(BytesOf(*serialized)),
                 .options = {.dims = Fact<std::map<std::string, int64_t>>(*of_origin, "dims"),
                             .split = Fact<std::optional<std::map<std::string, int64_t>>>(*of_origin, "split"),
                             .values = std::move(given),
                             .constants = {fixed.begin(), fixed.end()},
                             .states = {learnt.begin(), learnt.end()}}});
  return model;
}

}  // namespace

void BindGraphParts(nb::module_& module) {
  module.def("_graph_parts", &GraphParts, "graph"_a,
             nb::sig("def _graph_parts(graph: Graph) -> tuple[dict[str, typing.Any], dict[str, tuple[str, list[int], "
                     "numpy.ndarray]]]"));
  module.def("_graph_of_parts", &GraphOfParts, "facts"_a, "tensors"_a,
             nb::sig("def _graph_of_parts(facts: dict[str, typing.Any], tensors: collections.abc.Mapping[str, "
                     "tuple[str, collections.abc.Sequence[int], numpy.ndarray]]) -> Graph"));
}

}  // namespace lockstep::python
