// The graph that lockstep.graph.Builder builds, and the definitions of the ops, from which lockstep.graph makes its
// functions.
//
// Python refers to a value by its index in the list of the builder, so that no Python object has a pointer into the
// graph. An index stays valid until the graph is finished, also if a gradient's rule replaces the value's node.

#include <nanobind/nanobind.h>
#include <nanobind/stl/map.h>
#include <nanobind/stl/optional.h>
#include <nanobind/stl/pair.h>
#include <nanobind/stl/string.h>
#include <nanobind/stl/tuple.h>
#include <nanobind/stl/vector.h>

#include <cmath>
#include <limits>
#include <unordered_map>
#include <unordered_set>

#include "absl/algorithm/container.h"
#include "absl/strings/ascii.h"
#include "core/builder.h"
#include "core/placement_rules.h"
#include "core/verifier.h"
#include "passes/optimize/dce.h"
#include "passes/training/autodiff.h"
#include "python_bindings/arrays.h"
#include "python_bindings/bindings.h"
#include "python_bindings/errors.h"

namespace lockstep::python {

namespace nb = nanobind;
using namespace nb::literals;

namespace {

using Dims = std::vector<int64_t>;

DType DTypeNamed(const std::string& name, const std::string& what) {
  const std::optional<DType> dtype = DTypeFromName(name);
  if (!dtype) ThrowIfError(InvalidArgument() << what << " has the dtype " << name << ", which does not exist");
  return *dtype;
}

TensorType TypeOf(const std::string& dtype, const Dims& shape, const std::string& what) {
  const TensorType type{DTypeNamed(dtype, what), Shape(shape)};
  if (!IsAddressable(type)) ThrowIfError(InvalidArgument() << what << ": " << type << " is too large to address");
  return type;
}

// Returns the numbers as long doubles, which represent those of all dtypes exactly.
std::vector<long double> ExactNumbers(const Tensor& tensor) {
  static_assert(std::numeric_limits<long double>::digits >= 64);
  std::vector<long double> numbers;
  DispatchDType(tensor.dtype(), [&](auto tag) {
    using T = typename decltype(tag)::type;
    constexpr bool kIsHalf = std::is_same_v<T, Float16> || std::is_same_v<T, BFloat16>;
    for (const T& each : tensor.data<T>()) numbers.push_back(static_cast<std::conditional_t<kIsHalf, float, T>>(each));
  });
  return numbers;
}

// Returns the numbers in the dtype, or in their own if it is empty. Floats are rounded. A number that another dtype
// cannot represent is an error.
Tensor TensorOf(nb::handle array, const std::string& dtype, const std::string& what) {
  Tensor tensor = CopyArray(CastToArray(array, what), what);
  const DType wanted = dtype.empty() ? tensor.dtype() : DTypeNamed(dtype, what);
  Tensor converted = tensor.Converted(wanted);
  if (!IsFloat(wanted) && wanted != tensor.dtype() && ExactNumbers(converted) != ExactNumbers(tensor))
    ThrowIfError(InvalidArgument() << what << " has a number that " << wanted << " cannot represent");
  return converted;
}

// Converts an attribute of a node to the type that its op's function in lockstep.graph takes. One that is an operand
// becomes a tuple with the operand's index.
nb::object AttributeToPython(const Attribute& attribute) {
  return std::visit(
      [](const auto& value) -> nb::object {
        using T = std::decay_t<decltype(value)>;
        if constexpr (std::is_same_v<T, DType>) return nb::cast(std::string(DTypeName(value)));
        else if constexpr (std::is_same_v<T, Tensor>) return ToNumpy(value);
        else if constexpr (std::is_same_v<T, Region>)
          return value.empty() ? nb::none() : nb::cast(Model{value.graph().Clone(), {}, nullptr, {}, {}});
        else if constexpr (std::is_same_v<T, OperandRef>) return nb::make_tuple(value.index);
        else return nb::cast(value);
      },
      attribute);
}

// Converts a value, whose type lockstep/graph/_ops.py has checked, to the type of the attribute.
Attribute AttributeOf(const OpDef::AttributeDef& def, nb::handle value, const std::string& what) {
  return std::visit(
      [&](const auto& example) -> Attribute {
        using T = std::decay_t<decltype(example)>;
        if constexpr (std::is_same_v<T, DType>) return DTypeNamed(nb::cast<std::string>(value), what);
        else if constexpr (std::is_same_v<T, Tensor>) return CopyArray(CastToArray(value, what), what);
        else if constexpr (std::is_same_v<T, Region>) return Region(nb::cast<const Model&>(value).graph.Clone());
        else if constexpr (std::is_same_v<T, OperandRef>) return OperandRef{nb::cast<int64_t>(value)};
        else return nb::cast<T>(value);
      },
      def.example);
}

class GraphBuilder {
 public:
  GraphBuilder(std::string name, const std::vector<std::pair<std::string, int64_t>>& mesh) : graph_(std::move(name)) {
    graph_.set_mesh(ValueOrThrow(MeshOf(mesh)));
  }

  // Continues a copy of the model's graph.
  explicit GraphBuilder(const Model& model)
      : graph_(model.graph.Clone()), rest_(model.With(Graph())), initial_values_(model.values) {}

  size_t Input(const std::string& name, const std::string& dtype, const Dims& shape,
               const std::map<std::string, int64_t>& split) {
    const TensorType type = TypeOf(dtype, shape, "input " + name);
    return Add(ValueOrThrow(open().AddInput(name, type, /*is_state=*/false, PlacementsOf(split, type, name))));
  }

  // An input of which each rank of the axis has a term, whose sum is the whole value, or a value of its own.
  size_t OfRanks(const std::string& name, const std::string& dtype, const Dims& shape, const std::string& axis,
                 bool terms) {
    const TensorType type = TypeOf(dtype, shape, "input " + name);
    const Placement placement = terms ? Placement::Partial(ReduceKind::kSum) : Placement::Local();
    return Add(ValueOrThrow(open().AddInput(name, type, /*is_state=*/false, {{axis, placement}})));
  }

  // A state without a value starts as zeros.
  size_t State(const std::string& name, const std::string& dtype, const Dims& shape, nb::handle value,
               const std::map<std::string, int64_t>& split) {
    const std::string what = "the initial value of state " + name;
    const TensorType type = TypeOf(dtype, shape, "state " + name);
    std::optional<Tensor> initial;
    if (!value.is_none()) {
      initial = TensorOf(value, dtype, what);
      if (initial->type() != type)
        ThrowIfError(InvalidArgument() << what << " is " << initial->type() << ", the state " << type);
    }
    const size_t state =
        Add(ValueOrThrow(open().AddInput(name, type, /*is_state=*/true, PlacementsOf(split, type, name))));
    if (initial) initial_values_.insert_or_assign(name, *std::move(initial));
    return state;
  }

  size_t AddSetting(const std::string& name, double value, double least, double most) {
    const NumberRange range{least, std::isfinite(least), most, std::isfinite(most)};
    return Add(ValueOrThrow(open().AddSetting(name, Setting{value, range})));
  }

  size_t Constant(nb::handle array, const std::string& dtype, const std::string& source) {
    Builder builder(open(), before(), source);
    const Value value = builder.Constant(TensorOf(array, dtype, "the constant at " + source));
    ThrowIfError(builder.status());
    return Add(value);
  }

  // `refs` has the attributes whose numbers are operands, with the indices of these among `operands`.
  std::vector<size_t> Op(const std::string& name, const std::vector<size_t>& operands, const nb::dict& given,
                         const std::map<std::string, int64_t>& refs, const std::string& source) {
    const OpDef* op = FindOp(name);
    if (!op) ThrowIfError(InvalidArgument() << "there is no op " << name);
    AttributeMap attributes;
    for (const auto& [key, value] : given) {
      const std::string attribute = nb::cast<std::string>(key);
      const OpDef::AttributeDef* def = op->FindAttribute(attribute);
      if (!def) ThrowIfError(InvalidArgument() << name << ": there is no attribute " << attribute);
      attributes.emplace(attribute, AttributeOf(*def, value, name + ": " + attribute));
    }
    for (const auto& [attribute, index] : refs) attributes.insert_or_assign(attribute, OperandRef{index});
    Builder builder(open(), before(), source);
    const std::vector<Value> results = builder.Ops(name, Values(operands), std::move(attributes));
    ThrowIfError(builder.status());
    return AddAll(results);
  }

  // Inserts the nodes where those of ops are. Returns nothing for a value on which the loss does not depend.
  std::vector<std::optional<size_t>> Gradients(size_t loss, const std::vector<size_t>& wrt) {
    Graph& graph = open();
    const Value of = At(loss);
    const std::vector<std::string> names = Names();
    // The first of the new nodes. Nodes before it may be replaced.
    Value one;
    if (before() && of.shape().rank() == 0) one = Builder(graph).SplatLike(1, of);
    const auto gradients = passes::AddGradients(graph, of, Values(wrt), one);
    FindAgain(names);
    if (one) MoveToPlace(one.node);
    std::vector<std::optional<size_t>> indices;
    for (const Value& value : ValueOrThrow(gradients))
      indices.push_back(value ? std::optional(Add(value)) : std::nullopt);
    return indices;
  }

  void AddResult(const std::string& name, size_t value) {
    const PlacementMap placements = PlacementsOfResult(value);
    for (const auto& [axis, placement] : placements) {
      if (!placement.is_partial() && !placement.is_local()) continue;
      const std::string missing = MissingCollective(placement, Placement::Replicated());
      ThrowIfError(InvalidArgument() << "result " << name << " is " << placement << " along axis " << axis
                                     << ", made by " << At(value).node->Describe() << ": ranks would return different "
                                     << "values" << (missing.empty() ? "" : "; ") << missing);
    }
    ThrowIfError(open().AddResult(name, At(value), placements));
  }

  void AddNextState(const std::string& name, size_t value) {
    ThrowIfError(open().AddStateResult(name, At(value), PlacementsOfResult(value)));
  }

  // Returns the name, dtype, shape, and placements by axis.
  std::tuple<std::string, std::string, Dims, std::map<std::string, std::string>> Describe(size_t index) {
    const Value value = At(index);
    std::map<std::string, std::string> placements;
    for (const auto& [axis, placement] : value.placements()) placements.emplace(axis, placement.ToString());
    return {value.name(), std::string(DTypeName(value.dtype())), value.shape().dims(), placements};
  }

  // Returns the value of that name: an input's, or a node's.
  size_t Named(const std::string& name) {
    const ByName values = AllValues();
    const auto found = values.find(name);
    if (found == values.end()) ThrowIfError(NotFound() << "graph @" << graph_.name() << " has no value %" << name);
    return Add(found->second);
  }

  // Returns the op, results, attributes and source of each node, in order.
  std::vector<std::tuple<std::string, std::vector<size_t>, nb::dict, std::string>> Nodes() {
    std::vector<std::tuple<std::string, std::vector<size_t>, nb::dict, std::string>> nodes;
    for (Node& node : open().nodes()) {
      std::vector<Value> results;
      for (size_t i = 0; i < node.num_results(); ++i) results.push_back(node.result(i));
      nb::dict attributes;
      for (const auto& [name, value] : node.attributes()) attributes[nb::str(name.c_str())] = AttributeToPython(value);
      nodes.emplace_back(node.op_name(), AddAll(results), attributes, node.source());
    }
    return nodes;
  }

  // Returns the operands of the node that computes the value, with those that are numbers of attributes.
  std::vector<size_t> Operands(size_t value) { return AddAll(At(value).node->operands()); }

  // Further nodes are inserted before the one of this value; without a value, at the end.
  void InsertBefore(std::optional<size_t> value) {
    if (value && At(*value).node->is_input()) ThrowIfError(InvalidArgument() << "an input has no node before it");
    before_ = value;
  }

  // All uses of `from` become uses of `to`, except those by nodes that `to` is computed from. If the name of `to` was
  // generated, it takes over that of `from`, by which later passes and reports know a gradient.
  void Replace(size_t from, size_t to) {
    const Value old = At(from), next = At(to);
    if (old.type() != next.type())
      ThrowIfError(InvalidArgument() << "%" << old.name() << " is " << old.type() << " and cannot be replaced by %"
                                     << next.name() << ", which is " << next.type());
    std::unordered_set<const Node*> before = {next.node};
    std::vector<const Node*> rest = {next.node};
    while (!rest.empty()) {
      const Node* const node = rest.back();
      rest.pop_back();
      for (const Value& operand : node->operands()) {
        if (before.insert(operand.node).second) rest.push_back(operand.node);
      }
    }
    const std::vector<Node*> users = old.node->users();
    for (Node* user : users) {
      for (size_t i = 0; i < user->operands().size() && !before.contains(user); ++i) {
        if (user->operand(i) == old) graph_.SetOperand(user, i, next);
      }
    }
    for (size_t i = 0; i < graph_.results().size(); ++i) {
      if (graph_.results()[i].value == old) graph_.set_result_value(i, next);
    }
    if (old.node->is_input() || next.node->is_input() || !absl::c_all_of(next.name(), absl::ascii_isdigit)) return;
    const std::string name = old.name();
    graph_.SetName(old, "");
    graph_.SetName(next, name);
  }

  // Values of removed nodes cannot be used any more.
  void RemoveUnused() {
    const std::vector<std::string> names = Names();
    passes::RemoveDeadNodes(open());
    FindAgain(names);
    before_.reset();
  }

  Model Finish() {
    ThrowIfError(Verify(open()));
    is_finished_ = true;
    values_.clear();
    Model model = rest_.With(std::move(graph_));
    model.values = std::move(initial_values_);
    model.metadata.clear();  // of the module, whose evaluation the graph is not
    return model;
  }

  std::string ToString() { return open().ToString(); }
  bool is_finished() const { return is_finished_; }

 private:
  Graph& open() {
    if (is_finished_) ThrowIfError(FailedPrecondition() << "the graph is finished");
    return graph_;
  }

  size_t Add(Value value) {
    values_.push_back(value);
    return values_.size() - 1;
  }

  std::vector<size_t> AddAll(const std::vector<Value>& values) {
    std::vector<size_t> indices;
    for (const Value& value : values) indices.push_back(Add(value));
    return indices;
  }

  Value At(size_t index) {
    open();
    if (index >= values_.size() || !values_[index])
      ThrowIfError(FailedPrecondition() << "the value was removed from @" << graph_.name());
    return values_[index];
  }

  std::vector<Value> Values(const std::vector<size_t>& indices) {
    std::vector<Value> values;
    for (size_t index : indices) values.push_back(At(index));
    return values;
  }

  Node* before() { return before_ ? At(*before_).node : nullptr; }

  // Moves the nodes from `first` to the last one before the node before which nodes are inserted.
  void MoveToPlace(Node* first) {
    std::vector<Node*> nodes;
    for (auto it = graph_.nodes().rbegin(); nodes.empty() || nodes.back() != first; ++it) nodes.push_back(&*it);
    for (auto it = nodes.rbegin(); it != nodes.rend(); ++it) graph_.MoveBefore(*it, before());
  }

  PlacementMap PlacementsOfResult(size_t value) { return graph_.is_placed() ? At(value).placements() : PlacementMap(); }

  using ByName = std::unordered_map<std::string, Value>;

  ByName AllValues() {
    ByName values;
    for (const lockstep::Input& input : open().inputs()) values.emplace(input.name(), input.value);
    for (Node& node : graph_.nodes()) {
      for (size_t i = 0; i < node.num_results(); ++i) values.emplace(node.result_name(i), node.result(i));
    }
    return values;
  }

  std::vector<std::string> Names() const {
    std::vector<std::string> names;
    for (const Value& value : values_) names.push_back(value ? value.name() : "");
    return names;
  }

  // Looks the values up by their names. A node that replaces another in a gradient's rule takes over its names.
  void FindAgain(const std::vector<std::string>& names) {
    const ByName by_name = AllValues();
    for (size_t i = 0; i < names.size(); ++i) {
      const auto found = by_name.find(names[i]);
      values_[i] = found == by_name.end() ? Value() : found->second;
    }
  }

  static PlacementMap PlacementsOf(const std::map<std::string, int64_t>& split, const TensorType& type,
                                   const std::string& name) {
    PlacementMap placements;
    for (const auto& [axis, dim] : split) {
      if (dim < 0 || dim >= type.shape.rank())
        ThrowIfError(InvalidArgument() << "input " << name << " is split along dimension " << dim << ", but is "
                                       << type);
      placements.emplace(axis, Placement::Split(dim));
    }
    return placements;
  }

  Graph graph_;
  Model rest_ = {Graph(), {}, nullptr, {}, {}};  // of the model that is continued
  std::map<std::string, Tensor> initial_values_;
  std::vector<Value> values_;  // by the index that Python knows; null for values that were removed
  std::optional<size_t> before_;
  bool is_finished_ = false;
};

nb::object DefaultOf(const Attribute& attribute) {
  return std::visit(
      [](const auto& value) -> nb::object {
        using T = std::decay_t<decltype(value)>;
        if constexpr (std::is_arithmetic_v<T> || std::is_same_v<T, std::string> || std::is_same_v<T, Dims>)
          return nb::cast(value);
        else return nb::none();
      },
      attribute);
}

nb::dict DescribeAttribute(const OpDef::AttributeDef& attribute) {
  nb::dict described;
  described["name"] = attribute.name;
  described["type"] = std::string(AttributeTypeName(attribute.example));
  described["doc"] = attribute.doc;
  described["range"] = attribute.range ? attribute.range->ToString() : "";
  described["choices"] = attribute.choices;
  described["may_be_operand"] = attribute.may_be_operand;
  if (!attribute.required) described["default"] = DefaultOf(attribute.example);
  return described;
}

nb::list Ops() {
  nb::list list;
  for (const OpDef* op : AllOps()) {
    nb::dict described;
    described["name"] = op->name();
    described["doc"] = op->doc();
    described["operands"] = op->operand_names();
    described["is_variadic"] = op->is_variadic();
    described["results"] = op->result_names();
    nb::list attributes;
    for (const OpDef::AttributeDef& attribute : op->attribute_defs()) attributes.append(DescribeAttribute(attribute));
    described["attributes"] = attributes;
    std::vector<std::pair<std::string, std::string>> constraints;
    for (const OpDef::ConstraintDef& each : op->constraints()) constraints.emplace_back(each.id, each.text);
    described["constraints"] = constraints;
    described["is_elementwise"] = op->has_trait(kElementwise);
    described["is_collective"] = op->has_trait(kCollective);
    described["no_gradient"] = op->no_gradient();
    list.append(described);
  }
  return list;
}

}  // namespace

void BindBuilder(nb::module_& module) {
  module.def("_ops", &Ops, nb::sig("def _ops() -> list[dict[str, typing.Any]]"));
  nb::class_<GraphBuilder>(module, "_GraphBuilder", "A graph under construction. Values are indices.")
      .def(nb::init<std::string, const std::vector<std::pair<std::string, int64_t>>&>(), "name"_a, "mesh"_a)
      .def(nb::init<const Model&>(), "graph"_a)
      .def("input", &GraphBuilder::Input, "name"_a, "dtype"_a, "shape"_a, "split"_a)
      .def("of_ranks", &GraphBuilder::OfRanks, "name"_a, "dtype"_a, "shape"_a, "axis"_a, "terms"_a)
      .def("state", &GraphBuilder::State, "name"_a, "dtype"_a, "shape"_a, "value"_a.none(), "split"_a,
           nb::sig("def state(self, name: str, dtype: str, shape: collections.abc.Sequence[int], "
                   "value: numpy.ndarray | None, split: collections.abc.Mapping[str, int]) -> int"))
      .def("setting", &GraphBuilder::AddSetting, "name"_a, "value"_a, "least"_a, "most"_a)
      .def("constant", &GraphBuilder::Constant, "array"_a, "dtype"_a, "source"_a,
           nb::sig("def constant(self, array: numpy.ndarray, dtype: str, source: str) -> int"))
      .def("op", &GraphBuilder::Op, "name"_a, "operands"_a, "attributes"_a, "refs"_a, "source"_a,
           nb::sig("def op(self, name: str, operands: collections.abc.Sequence[int], attributes: dict[str, typing.Any],"
                   " refs: collections.abc.Mapping[str, int], source: str) -> list[int]"))
      .def("gradients", &GraphBuilder::Gradients, "loss"_a, "wrt"_a)
      .def("result", &GraphBuilder::AddResult, "name"_a, "value"_a)
      .def("next_state", &GraphBuilder::AddNextState, "name"_a, "value"_a)
      .def("describe", &GraphBuilder::Describe, "value"_a)
      .def("named", &GraphBuilder::Named, "name"_a)
      .def("nodes", &GraphBuilder::Nodes)
      .def("operands", &GraphBuilder::Operands, "value"_a)
      .def("insert_before", &GraphBuilder::InsertBefore, "value"_a.none())
      .def("replace", &GraphBuilder::Replace, "value"_a, "by"_a)
      .def("remove_unused", &GraphBuilder::RemoveUnused)
      .def("finish", &GraphBuilder::Finish)
      .def_prop_ro("is_finished", &GraphBuilder::is_finished)
      .def("__str__", &GraphBuilder::ToString);
}

}  // namespace lockstep::python
