#include "frontends/onnx/values.h"

#include <algorithm>

#include "core/interpreter.h"

namespace lockstep {
namespace {

constexpr int64_t kMaxFoldedElements = 1 << 16;  // more than any shape, and soon evaluated

}  // namespace

absl::Status OnnxValues::Define(const std::string& name, Value value) {
  if (Has(name)) return InvalidArgument() << "two values are named '" << name << "'";
  values_.emplace(name, value);
  return absl::OkStatus();
}

absl::Status OnnxValues::DefineConstant(const std::string& name, Tensor value) {
  if (Has(name)) return InvalidArgument() << "two values are named '" << name << "'";
  constants_.emplace(name, std::move(value));
  return absl::OkStatus();
}

Value OnnxValues::Get(const std::string& name) {
  if (const auto it = values_.find(name); it != values_.end()) return it->second;
  const Tensor& constant = constants_.at(name);
  const std::string source = builder_.source();
  builder_.set_source("onnx:" + name);
  const Value value = builder_.Constant(constant);
  builder_.set_source(source);
  if (!value) return value;
  builder_.graph().SetName(value, name);
  known_.emplace(value, Known{constant, {}});
  values_.emplace(name, value);
  constants_.erase(name);
  return value;
}

void OnnxValues::SetGivenValue(const std::string& name, Value value, Tensor given) {
  known_.insert_or_assign(value, Known{std::move(given), {name}});
}

const Tensor* OnnxValues::FindConstant(const std::string& name) {
  if (const auto it = constants_.find(name); it != constants_.end()) return &it->second;
  const Known* known = FindKnown(values_.at(name));
  if (known == nullptr) return nullptr;
  relied_upon_.insert(known->from.begin(), known->from.end());
  return &known->value;
}

const Tensor* OnnxValues::FindFixed(const std::string& name) const {
  if (const auto it = constants_.find(name); it != constants_.end()) return &it->second;
  const Known* known = FindKnown(values_.at(name));
  return known == nullptr || !known->from.empty() ? nullptr : &known->value;
}

const Tensor* OnnxValues::FindInitialValue(const std::string& name) {
  if (const Tensor* constant = FindConstant(name)) return constant;
  const auto it = initial_values_.find(values_.at(name));
  return it == initial_values_.end() ? nullptr : &it->second;
}

const OnnxValues::Known* OnnxValues::FindKnown(Value value) const {
  const auto it = known_.find(value);
  return it == known_.end() ? nullptr : &it->second;
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
    if (!small(node.type(i)) && !node.Is("constant")) return absl::OkStatus();
  }
  ASSIGN_OR_RETURN(std::vector<Tensor> results, EvaluateNode(node, operands));
  for (size_t i = 0; i < results.size(); ++i)
    known_.insert_or_assign({const_cast<Node*>(&node), static_cast<int>(i)}, Known{std::move(results[i]), from});
  return absl::OkStatus();
}

}  // namespace lockstep
