// Rows for every optimizer, from its block: options at their defaults and elsewhere, dtypes, and what must be refused.
// A new optimizer has them by being listed.

#include <algorithm>
#include <cmath>
#include <limits>

#include "core/op_def.h"
#include "test/op_cases/op_case.h"

namespace lockstep {
namespace {

constexpr double kNan = std::numeric_limits<double>::quiet_NaN();

bool MayBeNegative(const OpDef& op, const std::string& operand) {
  const std::vector<OptimizerState>& states = op.optimizer().states;
  return std::none_of(states.begin(), states.end(),
                      [&](const OptimizerState& state) { return state.operand == operand && state.is_never_negative; });
}

std::vector<CaseOperand> Operands(const OpDef& op, DType dtype, const Shape& shape) {
  std::vector<CaseOperand> operands;
  for (const std::string& name : op.operand_names()) {
    if (name == "step") operands.push_back(Typed(DType::kI64, {}).In(1, 9));
    else operands.push_back(Typed(dtype, shape).In(MayBeNegative(op, name) ? -2 : 0, 2));
  }
  return operands;
}

// What must be given, and `changed`.
AttributeMap Attributes(const OpDef& op, AttributeMap changed = {}) {
  for (const OpDef::AttributeDef& attribute : op.attribute_defs()) {
    if (attribute.required) changed.emplace(attribute.name, attribute.name == "learning_rate" ? 0.1 : 0.9);
  }
  return changed;
}

// A flag that is not its default, or a number that is in the range.
Attribute Elsewhere(const OpDef::AttributeDef& attribute) {
  if (const bool* flag = std::get_if<bool>(&attribute.example)) return !*flag;
  return attribute.range && !attribute.range->Contains(0.25) ? attribute.range->low + 0.25 : 0.25;
}

// Every number that may be an operand is one.
void AppendWithOperands(const OpDef& op, DType dtype, std::vector<OpCase>& rows) {
  std::vector<CaseOperand> operands = Operands(op, dtype, {6});
  AttributeMap attributes = Attributes(op);
  for (const OpDef::AttributeDef& attribute : op.attribute_defs()) {
    if (!attribute.may_be_operand) continue;
    attributes[attribute.name] = OperandRef{static_cast<int64_t>(operands.size())};
    operands.push_back(F64({}).In(0.1, 0.9));
  }
  rows.push_back(Case(op.name(), std::move(operands), std::move(attributes)));
}

// Every attribute elsewhere than at its default.
void AppendAccepted(const OpDef& op, std::vector<OpCase>& rows) {
  std::vector<AttributeMap> decays = {AttributeMap()};
  if (op.FindAttribute("weight_decay")) decays.push_back({{"weight_decay", 0.01}});
  for (const AttributeMap& decay : decays) {
    rows.push_back(Case(op.name(), Operands(op, DType::kF64, {6, 2}), Attributes(op, decay)));
    rows.push_back(Case(op.name(), Operands(op, DType::kF32, {12}), Attributes(op, decay)));
    for (const OpDef::AttributeDef& attribute : op.attribute_defs()) {
      AttributeMap changed = decay;
      changed[attribute.name] = Elsewhere(attribute);
      rows.push_back(Case(op.name(), Operands(op, DType::kF32, {6, 2}), Attributes(op, std::move(changed))));
    }
  }
  for (DType dtype : {DType::kF64, DType::kF32, DType::kBF16}) AppendWithOperands(op, dtype, rows);
  for (DType dtype : {DType::kBF16, DType::kF16})
    rows.push_back(Case(op.name(), Operands(op, dtype, {6}), Attributes(op, decays.back())));
  rows.push_back(Case(op.name(), Operands(op, DType::kF32, {2, 0}), Attributes(op)));
}

void AppendRefused(const OpDef& op, std::vector<OpCase>& rows) {
  const auto refuse = [&](std::vector<CaseOperand> operands, AttributeMap changed, const std::string& constraint) {
    rows.push_back(Case(op.name(), std::move(operands), Attributes(op, std::move(changed))).Refused(constraint));
  };
  const std::vector<CaseOperand> good = Operands(op, DType::kF32, {6});
  refuse(Operands(op, DType::kI32, {6}), {}, "C1");
  for (size_t i = 0; i < good.size(); ++i) {
    const std::string& name = op.operand_names()[i];
    std::vector<CaseOperand> wrong = good;
    if (name == "step") {
      for (const CaseOperand& step : {F32({}), I64({1})}) wrong[i] = step, refuse(wrong, {}, "C3");
      wrong[i] = Tensor::Scalar(DType::kI64, 0), refuse(wrong, {}, "C4");
    } else if (name != "w") {
      for (const CaseOperand& other : {F32({5}), F64({6})}) wrong[i] = other, refuse(wrong, {}, "C2");
    }
  }
  std::vector<CaseOperand> with_rate = good;
  with_rate.push_back(F64({}));
  const auto number = static_cast<int64_t>(good.size());
  for (int64_t wrong : {number - 1, number + 1}) refuse(with_rate, {{"learning_rate", OperandRef{wrong}}}, "operand");
  with_rate.back() = F32({});
  refuse(with_rate, {{"learning_rate", OperandRef{number}}}, "operand");
  for (const OpDef::AttributeDef& attribute : op.attribute_defs()) {
    if (!attribute.range) continue;
    const NumberRange& range = *attribute.range;
    refuse(good, {{attribute.name, range.low - 0.1}}, "range");
    refuse(good, {{attribute.name, kNan}}, "range");
    if (!range.includes_high) refuse(good, {{attribute.name, range.high}}, "range");  // infinity, where it is no bound
    if (!range.includes_low) refuse(good, {{attribute.name, range.low}}, "range");
  }
}

}  // namespace

std::vector<OpCase> OptimizerCases() {
  std::vector<OpCase> rows;
  for (const OpDef* op : AllOps()) {
    if (!op->has_trait(kOptimizer)) continue;
    AppendAccepted(*op, rows);
    AppendRefused(*op, rows);
  }
  return rows;
}

}  // namespace lockstep
