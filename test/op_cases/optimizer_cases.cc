// Rows for every optimizer, made from its block: options at and off their defaults, dtypes, and refusals. A new
// optimizer in the list has them automatically.

#include <algorithm>
#include <cmath>
#include <limits>

#include "core/op_def.h"
#include "test/op_cases/op_case.h"

namespace lockstep {
namespace {

constexpr double kNan = std::numeric_limits<double>::quiet_NaN();

// The range of an operand's random elements. A mean of squares is at least the square of the mean.
CaseOperand Drawn(const OpDef& op, const std::string& name, const TensorType& type) {
  const std::vector<std::string>& names = op.operand_names();
  const bool has_mean = std::find(names.begin(), names.end(), "mean") != names.end();
  if (name == "step") return CaseOperand(type).In(1, 9);
  if (name == "mean") return CaseOperand(type).In(-0.5, 0.5);
  if (name == "square" && has_mean) return CaseOperand(type).In(1, 2);
  const std::vector<OptimizerState>& states = op.optimizer().states;
  const bool is_positive = std::any_of(states.begin(), states.end(), [&](const OptimizerState& state) {
    return state.operand == name && state.is_never_negative;
  });
  return CaseOperand(type).In(is_positive ? 0 : -2, 2);
}

std::vector<CaseOperand> Operands(const OpDef& op, DType dtype, const Shape& shape) {
  const TensorType variable{dtype, shape};
  const std::vector<OptimizerState>& states = op.optimizer().states;
  std::vector<CaseOperand> operands;
  for (const std::string& name : op.operand_names()) {
    const size_t i = operands.size();
    TensorType type = i > 0 && i <= states.size() ? states[i - 1].TypeFor(variable) : variable;
    if (name == "step") type = {DType::kI64, Shape()};
    operands.push_back(Drawn(op, name, type));
  }
  return operands;
}

// Returns the shape, or one with as many elements that the op can update.
Shape Fitting(const OpDef& op, const Shape& shape) {
  const VariableRanks& ranks = op.optimizer().ranks;
  if (ranks.Contain(shape.rank())) return shape;
  const int64_t count = shape.num_elements();
  if (shape.rank() >= 2) return Shape({count});
  return count % 6 == 0 ? Shape({count / 6, 6}) : Shape({count, 1});
}

// The required attributes, and those of `changed`.
AttributeMap Attributes(const OpDef& op, AttributeMap changed = {}) {
  for (const OpDef::AttributeDef& attribute : op.attribute_defs()) {
    if (attribute.required) changed.emplace(attribute.name, attribute.name == "learning_rate" ? 0.1 : 0.9);
  }
  return changed;
}

// Every option that may be an operand is one.
void AppendWithOperands(const OpDef& op, DType dtype, std::vector<OpCase>& rows) {
  std::vector<CaseOperand> operands = Operands(op, dtype, Fitting(op, {6}));
  AttributeMap attributes = Attributes(op);
  for (const OpDef::AttributeDef& attribute : op.attribute_defs()) {
    if (!attribute.may_be_operand) continue;
    attributes[attribute.name] = OperandRef{static_cast<int64_t>(operands.size())};
    operands.push_back(F64({}).In(0.1, 0.9));
  }
  rows.push_back(Case(op.name(), std::move(operands), std::move(attributes)));
}

// Returns an allowed value other than the default.
Attribute Elsewhere(const OpDef::AttributeDef& attribute) {
  if (const bool* const flag = std::get_if<bool>(&attribute.example)) return !*flag;
  if (const auto* const number = std::get_if<int64_t>(&attribute.example)) return *number + 1;
  if (std::holds_alternative<std::string>(attribute.example)) return attribute.choices.back();
  const NumberRange range = attribute.range.value_or(AtLeast(0));
  if (std::isfinite(range.low)) return range.low + 0.25;
  if (std::isfinite(range.high)) return range.high - 0.25;
  return std::get<double>(attribute.example) + 1.0 / 64;  // coefficients whose iteration diverges with most others
}

// Every attribute differs from its default.
void AppendAccepted(const OpDef& op, std::vector<OpCase>& rows) {
  const Shape matrix = Fitting(op, {6, 2}), vector = Fitting(op, {12}), small = Fitting(op, {6});
  std::vector<AttributeMap> decays = {AttributeMap()};
  if (op.FindAttribute("weight_decay")) decays.push_back({{"weight_decay", 0.01}});
  for (const AttributeMap& decay : decays) {
    rows.push_back(Case(op.name(), Operands(op, DType::kF64, matrix), Attributes(op, decay)));
    rows.push_back(Case(op.name(), Operands(op, DType::kF32, vector), Attributes(op, decay)));
    for (const OpDef::AttributeDef& attribute : op.attribute_defs()) {
      AttributeMap changed = decay;
      changed[attribute.name] = Elsewhere(attribute);
      rows.push_back(Case(op.name(), Operands(op, DType::kF32, matrix), Attributes(op, std::move(changed))));
    }
  }
  if (op.optimizer().ranks.Contain(3))
    rows.push_back(Case(op.name(), Operands(op, DType::kF32, {2, 3, 6}), Attributes(op)));
  if (op.optimizer().ranks.Contain(0)) rows.push_back(Case(op.name(), Operands(op, DType::kF32, {}), Attributes(op)));
  for (DType dtype : {DType::kF64, DType::kF32, DType::kBF16}) AppendWithOperands(op, dtype, rows);
  for (DType dtype : {DType::kBF16, DType::kF16})
    rows.push_back(Case(op.name(), Operands(op, dtype, small), Attributes(op, decays.back())));
  rows.push_back(Case(op.name(), Operands(op, DType::kF32, Fitting(op, {2, 0})), Attributes(op)));
}

// For each attribute, values outside its range or choices.
void AppendRefusedAttributes(const OpDef& op, std::vector<OpCase>& rows) {
  const std::vector<CaseOperand> good = Operands(op, DType::kF32, Fitting(op, {6}));
  const auto refuse = [&](const std::string& name, Attribute value, const std::string& constraint) {
    rows.push_back(Case(op.name(), good, Attributes(op, {{name, std::move(value)}})).Refused(constraint));
  };
  for (const OpDef::AttributeDef& attribute : op.attribute_defs()) {
    if (!attribute.choices.empty()) refuse(attribute.name, std::string("neither"), "choice");
    if (!attribute.range) continue;
    const NumberRange& range = *attribute.range;
    if (std::holds_alternative<int64_t>(attribute.example)) {
      refuse(attribute.name, static_cast<int64_t>(range.low) - 1, "range");
      refuse(attribute.name, static_cast<int64_t>(range.high) + 1, "range");
      continue;
    }
    refuse(attribute.name, range.low - 0.1, "range");
    refuse(attribute.name, kNan, "range");
    refuse(attribute.name, range.includes_high ? range.high + 0.1 : range.high, "range");  // infinity, if unbounded
    if (!range.includes_low) refuse(attribute.name, range.low, "range");
  }
}

void AppendRefused(const OpDef& op, std::vector<OpCase>& rows) {
  const auto refuse = [&](std::vector<CaseOperand> operands, AttributeMap changed, const std::string& constraint) {
    rows.push_back(Case(op.name(), std::move(operands), Attributes(op, std::move(changed))).Refused(constraint));
  };
  const Shape shape = Fitting(op, {6});
  const std::vector<CaseOperand> good = Operands(op, DType::kF32, shape);
  refuse(Operands(op, DType::kI32, shape), {}, "C1");
  if (const VariableRanks& ranks = op.optimizer().ranks; ranks != VariableRanks()) {
    // A state of rows has no type for a vector.
    const Shape wrong = ranks.Contain(1) ? Shape({6, 2}) : Shape({6});
    refuse(std::vector<CaseOperand>(good.size(), F32(wrong)), {}, "rank");
  }
  for (size_t i = 0; i < good.size(); ++i) {
    const std::string& name = op.operand_names()[i];
    std::vector<CaseOperand> wrong = good;
    if (name == "step") {
      for (const CaseOperand& step : {F32({}), I64({1})}) wrong[i] = step, refuse(wrong, {}, "C3");
      wrong[i] = Tensor::Scalar(DType::kI64, 0), refuse(wrong, {}, "C4");
    } else if (name != "w") {
      for (const CaseOperand& other : {F32({5}), BF16(good[i].type.shape)}) wrong[i] = other, refuse(wrong, {}, "C2");
    }
  }
  std::vector<CaseOperand> with_rate = good;
  with_rate.push_back(F64({}));
  const auto number = static_cast<int64_t>(good.size());
  for (int64_t wrong : {number - 1, number + 1}) refuse(with_rate, {{"learning_rate", OperandRef{wrong}}}, "operand");
  with_rate.back() = F32({});
  refuse(with_rate, {{"learning_rate", OperandRef{number}}}, "operand");
}

}  // namespace

std::vector<OpCase> OptimizerCases() {
  std::vector<OpCase> rows;
  for (const OpDef* op : AllOps()) {
    if (!op->has_trait(kOptimizer)) continue;
    AppendAccepted(*op, rows);
    AppendRefused(*op, rows);
    AppendRefusedAttributes(*op, rows);
  }
  return rows;
}

}  // namespace lockstep
