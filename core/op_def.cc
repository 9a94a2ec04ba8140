#include "core/op_def.h"

#include <algorithm>

#include "core/builder.h"
#include "core/option_text.h"

namespace lockstep {
namespace {

constexpr char kRangeConstraint[] = "range";
constexpr char kChoiceConstraint[] = "choice";
constexpr char kOperandConstraint[] = "operand";

bool IsNumber(const Attribute& value) {
  return std::holds_alternative<double>(value) || std::holds_alternative<int64_t>(value);
}

// Checks that the value is in the attribute's range, or among its choices.
absl::Status CheckValue(const InferContext& context, const OpDef::AttributeDef& attribute, const Attribute& value) {
  if (attribute.range && IsNumber(value)) {
    const auto* const whole = std::get_if<int64_t>(&value);
    const double number = whole ? static_cast<double>(*whole) : std::get<double>(value);
    if (attribute.range->Contains(number)) return absl::OkStatus();
    return context.Error(kRangeConstraint)
           << attribute.name << " is " << number << ", expected " << attribute.range->ToString();
  }
  const std::vector<std::string>& choices = attribute.choices;
  if (choices.empty() || std::find(choices.begin(), choices.end(), std::get<std::string>(value)) != choices.end())
    return absl::OkStatus();
  ErrorStream error = context.Error(kChoiceConstraint);
  error << attribute.name << " is '" << std::get<std::string>(value) << "', expected one of ";
  for (size_t i = 0; i < choices.size(); ++i) error << (i ? ", " : "") << choices[i];
  return error;
}

// Checks that each operand after the first `own` is an f64 scalar and belongs to exactly one attribute.
absl::Status CheckOperandRefs(const InferContext& context, size_t own) {
  std::vector<std::string_view> names(context.num_operands() - own);
  for (const auto& [name, value] : context.attributes()) {
    const auto* const ref = std::get_if<OperandRef>(&value);
    if (ref == nullptr) continue;
    const auto i = static_cast<size_t>(ref->index);
    if (i < own || i >= context.num_operands() || !names[i - own].empty()) {
      return context.Error(kOperandConstraint)
             << name << " is " << AttributeToString(value) << " of " << context.num_operands()
             << ", expected an operand after the first " << own << " that no other attribute has";
    }
    names[i - own] = name;
    const TensorType expected{DType::kF64, Shape()};
    if (context.operand(i) == expected) continue;
    return context.Error(kOperandConstraint) << name << " is " << context.operand(i) << ", expected " << expected;
  }
  return absl::OkStatus();
}

}  // namespace

ErrorStream NodeContext::Error(std::string_view constraint) const {
  return std::move(InvalidArgument() << op_.name() << " (" << constraint << "): ");
}

void VjpContext::Contribute(size_t i, Value value) {
  if (!value) return;  // the builder has an error
  LOCKSTEP_CHECK(value.type() == operand(i).type())
      << "gradient of operand " << i << " of " << node_.Describe() << " has type " << value.type().ToString();
  contributions_[i].push_back(value);
}

void VjpContext::Fail(std::string reason) {
  builder_.Fail(InvalidArgument() << node_.Describe() << " has no gradient: " << reason);
}

absl::StatusOr<Node*> VjpContext::Replace(NodeSpec spec, const std::vector<size_t>& results) {
  Graph& graph = builder_.graph();
  ASSIGN_OR_RETURN(Node* const node, graph.Insert(std::move(spec), &node_));
  for (size_t i = 0; i < results.size(); ++i) {
    const std::string name = node_.result_name(i);
    graph.ReplaceUses(node_.result(i), node->result(results[i]));
    graph.SetName(node_.result(i), name + ".replaced");
    graph.SetName(node->result(results[i]), name);
  }
  is_replaced_ = true;
  return node;
}

PlacementContext::PlacementContext(const OpDef& op, const AttributeMap& attributes,
                                   std::span<const TensorType> operand_types, std::span<const TensorType> result_types,
                                   std::span<const Placement> operands, const MeshAxis& mesh_axis,
                                   std::optional<Placement> wanted)
    : NodeContext(op, attributes),
      operand_types_(operand_types),
      result_types_(result_types),
      operands_(operands),
      mesh_axis_(mesh_axis),
      wanted_(wanted),
      required_(operands.begin(), operands.end()),
      results_(result_types.size()) {}

IndexContext::IndexContext(const Node& node)
    : NodeContext(node.op(), node.attributes()),
      operand_(node.operands().empty() ? node.type().shape : node.operand(0).shape()),
      result_(node.type().shape) {}

IndexMap IndexMapOf(const Node& node) { return node.op().index_map()(IndexContext(node)); }

Affine CountOf(const Node& node) { return node.op().count()(IndexContext(node)); }

double FlopsOf(const Node& node) {
  const OpDef& op = node.op();
  if (op.flops()) return op.flops()(node);
  if (op.has_trait(kMovement) || op.has_trait(kGenerator) || op.has_trait(kCollective)) return 0;
  int64_t largest = 0;
  for (size_t i = 0; i < node.num_results(); ++i) largest = std::max(largest, node.type(i).num_elements());
  if (op.has_trait(kElementwise)) return static_cast<double>(largest);
  for (Value operand : node.operands()) largest = std::max(largest, operand.type().num_elements());
  return static_cast<double>(largest);
}

int64_t ElementsRead(const Node& node, size_t i) {
  const int64_t all = node.operand(i).type().num_elements();
  if (node.op().has_trait(kMovement)) return std::min(all, node.type().num_elements());
  if (!node.Is("fusion")) return all;
  const Graph& body = node.attr<Region>("body").graph();
  const Value input = body.inputs()[i].value;
  int64_t read = 0;
  for (const Node& inner : body.nodes()) {
    for (size_t k = 0; k < inner.operands().size(); ++k) {
      if (inner.operand(k) == input) read += ElementsRead(inner, k);
    }
  }
  for (const Result& result : body.results()) {
    if (result.value == input) return all;
  }
  return std::min(all, read);
}

OpDef& OpDef::Reduces(ReduceKind kind) {
  LOCKSTEP_CHECK(kind != ReduceKind::kMean) << name_ << ": a mean is a sum that is divided";
  reduction_ = kind;
  return Trait(kReduction);
}

OpDef& OpDef::PerDim(std::string_view attribute) {
  const auto it = std::find_if(attributes_.begin(), attributes_.end(),
                               [&](const AttributeDef& def) { return def.name == attribute; });
  LOCKSTEP_CHECK(it != attributes_.end() && std::holds_alternative<std::vector<int64_t>>(it->example))
      << name_ << " has no list " << attribute;
  it->is_per_dim = true;
  return *this;
}

OpDef& OpDef::In(NumberRange range) {
  LOCKSTEP_CHECK(!attributes_.empty() && IsNumber(attributes_.back().example))
      << name_ << " has no number before the range";
  attributes_.back().range = range;
  const auto is_declared = [](const ConstraintDef& constraint) { return constraint.id == kRangeConstraint; };
  if (std::none_of(constraints_.begin(), constraints_.end(), is_declared))
    Constraint(kRangeConstraint, "numbers are in the ranges above");
  return *this;
}

OpDef& OpDef::OneOf(std::vector<std::string> choices) {
  LOCKSTEP_CHECK(!attributes_.empty() && std::holds_alternative<std::string>(attributes_.back().example))
      << name_ << " has no string before the choices";
  attributes_.back().choices = std::move(choices);
  const auto is_declared = [](const ConstraintDef& constraint) { return constraint.id == kChoiceConstraint; };
  if (std::none_of(constraints_.begin(), constraints_.end(), is_declared))
    Constraint(kChoiceConstraint, "strings are among the choices above");
  return *this;
}

OpDef& OpDef::OrOperand() {
  LOCKSTEP_CHECK(!attributes_.empty() && std::holds_alternative<double>(attributes_.back().example) && !variadic_)
      << name_ << " has no float that could be an operand";
  attributes_.back().may_be_operand = true;
  const auto is_declared = [](const ConstraintDef& constraint) { return constraint.id == kOperandConstraint; };
  if (std::none_of(constraints_.begin(), constraints_.end(), is_declared))
    Constraint(kOperandConstraint, "attributes that are operands are f64 scalars, after the op's own operands");
  return *this;
}

const OpDef::AttributeDef* OpDef::FindAttribute(std::string_view name) const {
  for (const AttributeDef& attribute : attributes_) {
    if (attribute.name == name) return &attribute;
  }
  return nullptr;
}

absl::StatusOr<AttributeMap> OpDef::CompleteAttributes(AttributeMap attributes) const {
  for (auto& [name, value] : attributes) {
    const AttributeDef* def = FindAttribute(name);
    if (!def) {
      std::vector<std::string> names;
      for (const AttributeDef& attribute : attributes_) names.push_back(attribute.name);
      return InvalidArgument() << name_ << ": unknown attribute '" << name << "'" << SuggestName(name, names);
    }
    if (std::holds_alternative<double>(def->example) && std::holds_alternative<int64_t>(value)) {
      value = static_cast<double>(std::get<int64_t>(value));
    }
    if (def->may_be_operand && std::holds_alternative<OperandRef>(value)) continue;
    if (def->example.index() != value.index()) {
      return InvalidArgument() << name_ << ": attribute '" << name << "' is a " << AttributeTypeName(value)
                               << ", expected a " << AttributeTypeName(def->example);
    }
  }
  for (const AttributeDef& def : attributes_) {
    if (attributes.contains(def.name)) continue;
    if (def.required) return InvalidArgument() << name_ << ": attribute '" << def.name << "' is missing";
    attributes.emplace(def.name, def.example);
  }
  return attributes;
}

absl::StatusOr<std::vector<TensorType>> OpDef::InferTypes(std::span<const TensorType> operands,
                                                          const AttributeMap& attributes, const Mesh& mesh,
                                                          bool is_local) const {
  const size_t own = operands_.size() - (may_be_none_ ? 1 : 0);
  const size_t least = own + NumOperandRefs(attributes);
  if (operands.size() < least || (!variadic_ && operands.size() > least)) {
    return InvalidArgument() << name_ << ": " << operands.size() << " operands, expected "
                             << (variadic_ ? "at least " : "") << least;
  }
  InferContext context(*this, attributes, operands, mesh, is_local);
  for (const AttributeDef& attribute : attributes_)
    RETURN_IF_ERROR(CheckValue(context, attribute, attributes.find(attribute.name)->second));
  if (least > own) RETURN_IF_ERROR(CheckOperandRefs(context, own));
  RETURN_IF_ERROR(infer_(context));
  return std::move(context.results());
}

std::string_view PrecisionRuleName(PrecisionRule rule) {
  switch (rule) {
    case PrecisionRule::kFull: return "f32";
    case PrecisionRule::kLow: return "16 bits";
    case PrecisionRule::kComputesInF32: return "f32 inside";
    case PrecisionRule::kFollows: return "follows";
    case PrecisionRule::kAsDeclared: return "as written";
  }
  LOCKSTEP_CHECK(false) << "precision rule " << static_cast<int>(rule);
  __builtin_unreachable();
}

const std::vector<OpTraitName>& AllOpTraits() {
  static const std::vector<OpTraitName> names = {
      {kElementwise, "elementwise"},
      {kMovement, "movement"},
      {kGenerator, "generator"},
      {kReduction, "reduction"},
      {kCollective, "collective"},
      {kOptimizer, "optimizer"},
      {kOpaque, "opaque"},
      {kCommutative, "commutative"},
      {kIdempotent, "idempotent"},
      {kInvolution, "involution"},
      {kKeepsOrder, "keeps the order"},
      {kRematerialised, "rematerialised"},
      {kOneRankIdentity, "identity on one rank"},
      {kExpensive, "heavy"},
      {kSteps, "steps"},
      {kChecksData, "refuses data"},
      {kEndsGradients, "ends gradients"},
      {kLoop, "loop"},
      {kOfServers, "of parameter servers"},
  };
  return names;
}

const OpDef& InputOp() {
  static const OpDef def = OpDef("input").Doc("An input of the graph.");
  return def;
}

}  // namespace lockstep
