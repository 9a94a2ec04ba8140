#include "frontends/onnx/values.h"

#include <algorithm>

#include "core/check.h"
#include "core/interpreter.h"
#include "core/op_def.h"

namespace lockstep {
namespace {

constexpr int64_t kMaxFoldedElements = 1 << 16;  // more than any shape, and fast to evaluate
// Limits for one node and for all nodes of a file, in operations. Without them, a Loop of constants could take any
// time.
constexpr double kMaxFolding = 1 << 24, kMaxFoldingOfAll = 1 << 27;

// Estimates the operations that evaluating the node takes. Nodes that only move elements count too.
double StepsOf(const Node& node) {
  double steps = FlopsOf(node) + 1;
  for (size_t i = 0; i < node.num_results(); ++i) steps += static_cast<double>(node.type(i).num_elements());
  if (!node.Is("scan")) return steps;
  double each = 0;
  for (const Node& inner : node.attr<Region>("body").graph().nodes()) each += StepsOf(inner);
  return steps + each * static_cast<double>(node.attr<int64_t>("length"));
}

}  // namespace

std::string_view KindOf(const OnnxValue& value) {
  if (std::holds_alternative<Value>(value)) return "a tensor";
  return std::holds_alternative<OnnxSequence>(value) ? "a sequence" : "an empty optional";
}

std::string SourceIn(const std::string& place, const std::string& name) {
  return place.ends_with('/') && name.starts_with('/') ? place + name.substr(1) : place + name;
}

std::string NameIn(const std::string& place, const std::string& name) {
  const std::string source = SourceIn(place, name);
  return source.substr(source.find(':') + 1);
}

OnnxValues::OnnxValues(Builder& builder) : builder_(builder) { OpenScope("onnx:", /*sees_outer=*/false); }

void OnnxValues::OpenScope(std::string place, bool sees_outer) {
  scopes_.push_back(Scope{std::move(place), sees_outer, {}, {}});
}

void OnnxValues::CloseScope() {
  LOCKSTEP_CHECK(is_in_body()) << "the file's graph stays open";
  scopes_.pop_back();
}

std::optional<size_t> OnnxValues::ScopeOf(const std::string& name) const {
  for (size_t i = scopes_.size(); i-- > 0;) {
    if (scopes_[i].values.count(name) || scopes_[i].constants.count(name)) return i;
    if (!scopes_[i].sees_outer) break;
  }
  return std::nullopt;
}

absl::Status OnnxValues::Define(const std::string& name, OnnxValue value) {
  Scope& scope = scopes_.back();
  if (scope.constants.count(name) || !scope.values.emplace(name, std::move(value)).second)
    return InvalidArgument() << "two values are named '" << name << "'";
  return absl::OkStatus();
}

absl::Status OnnxValues::DefineConstant(const std::string& name, Tensor value) {
  Scope& scope = scopes_.back();
  if (scope.values.count(name) || !scope.constants.emplace(name, std::move(value)).second)
    return InvalidArgument() << "two values are named '" << name << "'";
  return absl::OkStatus();
}

bool OnnxValues::IsUndefinedConstant(const std::string& name) const {
  const std::optional<size_t> at = ScopeOf(name);
  return at && scopes_[*at].constants.count(name) > 0;
}

bool OnnxValues::IsTensor(const std::string& name) const {
  const Scope& scope = scopes_[ScopeOf(name).value()];
  const auto it = scope.values.find(name);
  return it == scope.values.end() || std::holds_alternative<Value>(it->second);
}

bool OnnxValues::IsNothing(const std::string& name) const {
  const Scope& scope = scopes_[ScopeOf(name).value()];
  const auto it = scope.values.find(name);
  return it != scope.values.end() && std::holds_alternative<OnnxNothing>(it->second);
}

Value OnnxValues::Get(const std::string& name) { return std::get<Value>(GetAny(name)); }

const OnnxValue& OnnxValues::GetAny(const std::string& name) {
  Scope& scope = scopes_[ScopeOf(name).value()];
  if (const auto it = scope.values.find(name); it != scope.values.end()) return it->second;
  const auto constant = scope.constants.find(name);
  // Does not use the builder, which makes nothing after a failure: converters may read the shape of an input first and
  // check for errors later.
  const std::string source = SourceIn(scope.place, name);
  const absl::StatusOr<Node*> node =
      builder_.graph().Insert({&GetOp("constant"), {}, {{"value", constant->second}}, source, {}});
  LOCKSTEP_CHECK(node.ok()) << node.status();
  const Value value = (*node)->result();
  builder_.graph().SetName(value, NameIn(scope.place, name));
  known_.emplace(value, Known{std::move(constant->second), {}});
  scope.constants.erase(constant);
  return scope.values.emplace(name, value).first->second;
}

void OnnxValues::SetGivenValue(const std::string& name, Value value, Tensor given) {
  known_.insert_or_assign(value, Known{std::move(given), {name}});
}

const Tensor* OnnxValues::FindConstant(const std::string& name) {
  const Scope& scope = scopes_[ScopeOf(name).value()];
  if (const auto it = scope.constants.find(name); it != scope.constants.end()) return &it->second;
  return IsTensor(name) ? FindConstant(std::get<Value>(scope.values.at(name))) : nullptr;
}

const Tensor* OnnxValues::FindConstant(Value value) {
  const Known* known = FindKnown(value);
  if (known == nullptr) return nullptr;
  relied_upon_.insert(known->from.begin(), known->from.end());
  return &known->value;
}

const Tensor* OnnxValues::FindDataIndependent(const std::string& name) const {
  const Scope& scope = scopes_[ScopeOf(name).value()];
  if (const auto it = scope.constants.find(name); it != scope.constants.end()) return &it->second;
  const auto it = scope.values.find(name);
  if (it == scope.values.end() || !std::holds_alternative<Value>(it->second)) return nullptr;
  const Known* known = FindKnown(std::get<Value>(it->second));
  return known == nullptr || !known->from.empty() ? nullptr : &known->value;
}

const Tensor* OnnxValues::FindInitialValue(const std::string& name) {
  if (const Tensor* constant = FindConstant(name)) return constant;
  if (!IsTensor(name)) return nullptr;
  const auto it = initial_values_.find(Get(name));
  return it == initial_values_.end() ? nullptr : it->second;
}

const OnnxValues::Known* OnnxValues::FindKnown(Value value) const {
  const auto it = known_.find(value);
  return it == known_.end() ? nullptr : &it->second;
}

void OnnxValues::Forget(Node& node) {
  for (size_t i = 0; i < node.num_results(); ++i) {
    known_.erase(node.result(i));
    initial_values_.erase(node.result(i));
  }
}

absl::Status OnnxValues::Fold(const Node& node) {
  const auto small = [](const TensorType& type) { return type.num_elements() <= kMaxFoldedElements; };
  std::vector<const Tensor*> operands;
  std::set<std::string> from;
  for (Value operand : node.operands()) {
    const Known* known = FindKnown(operand);
    if (known == nullptr || !small(operand.type())) return absl::OkStatus();
    operands.push_back(&known->value);
    from.insert(known->from.begin(), known->from.end());
  }
  if (!node.op().eval()) return absl::OkStatus();
  for (size_t i = 0; i < node.num_results(); ++i) {
    if (!small(node.type(i)) && !node.is_constant()) return absl::OkStatus();
  }
  const double steps = StepsOf(node);
  if (steps > kMaxFolding || folding_ + steps > kMaxFoldingOfAll) return absl::OkStatus();
  folding_ += steps;
  ASSIGN_OR_RETURN(std::vector<Tensor> results, EvaluateNode(node, operands));
  for (size_t i = 0; i < results.size(); ++i)
    known_.insert_or_assign({const_cast<Node*>(&node), static_cast<int>(i)}, Known{std::move(results[i]), from});
  return absl::OkStatus();
}

}  // namespace lockstep
