#include <limits>

#include "test/op_cases/op_case.h"

namespace lockstep {
namespace {

const CaseOperand kStep = Typed(DType::kI64, {}).In(1, 9);

std::vector<CaseOperand> Operands(const std::string& op, DType dtype, const Shape& shape) {
  const CaseOperand value = Typed(dtype, shape), root = Typed(dtype, shape).In(0, 2);
  if (op == "sgd") return {value, value};
  if (op == "sgd_momentum") return {value, value, value};
  return {value, value, root, kStep, value};
}

AttributeMap Attributes(const std::string& op, double learning_rate, double weight_decay) {
  AttributeMap attributes = {{"learning_rate", learning_rate}, {"weight_decay", weight_decay}};
  if (op == "sgd_momentum") attributes.emplace("momentum", 0.9);
  return attributes;
}

}  // namespace

std::vector<OpCase> OptimizerCases() {
  std::vector<OpCase> rows;
  for (const char* op : {"sgd", "sgd_momentum", "adam"}) {
    for (double decay : {0.0, 0.01}) {
      rows.push_back(Case(op, Operands(op, DType::kF64, {6, 2}), Attributes(op, 0.1, decay)));
      rows.push_back(Case(op, Operands(op, DType::kF32, {12}), Attributes(op, 0.1, decay)));
      const char* variant = std::string(op) == "adam" ? "decoupled" : "nesterov";
      if (std::string(op) == "sgd") continue;
      AttributeMap attributes = Attributes(op, 0.1, decay);
      attributes.emplace(variant, true);
      rows.push_back(Case(op, Operands(op, DType::kF32, {6, 2}), std::move(attributes)));
    }
    rows.push_back(Case(op, Operands(op, DType::kBF16, {6}), Attributes(op, 0.1, 0.01)));
    rows.push_back(Case(op, Operands(op, DType::kF32, {2, 0}), Attributes(op, 0.1, 0.01)));

    rows.push_back(Case(op, Operands(op, DType::kI32, {6}), Attributes(op, 0.1, 0)).Refused("C1"));
    std::vector<CaseOperand> shorter = Operands(op, DType::kF32, {6}), wider = shorter;
    shorter.back() = F32({5});
    wider.back() = F64({6});
    rows.push_back(Case(op, shorter, Attributes(op, 0.1, 0)).Refused("C2"));
    rows.push_back(Case(op, wider, Attributes(op, 0.1, 0)).Refused("C2"));
    rows.push_back(Case(op, Operands(op, DType::kF32, {6}), Attributes(op, -0.1, 0)).Refused("C3"));
    rows.push_back(Case(op, Operands(op, DType::kF32, {6}), Attributes(op, std::numeric_limits<double>::quiet_NaN(), 0))
                       .Refused("C3"));
    rows.push_back(Case(op, Operands(op, DType::kF32, {6}), Attributes(op, 0.1, -1)).Refused("C3"));
  }
  AttributeMap beta = Attributes("adam", 0.1, 0);
  beta.emplace("beta2", 1.0);
  rows.push_back(Case("adam", Operands("adam", DType::kF32, {6}), beta).Refused("C3"));
  std::vector<CaseOperand> step = Operands("adam", DType::kF32, {6});
  step[3] = F32({});
  rows.push_back(Case("adam", step, Attributes("adam", 0.1, 0)).Refused("C4"));
  step[3] = I64({1});
  rows.push_back(Case("adam", step, Attributes("adam", 0.1, 0)).Refused("C4"));
  step[3] = Tensor::Scalar(DType::kI64, 0);
  rows.push_back(Case("adam", step, Attributes("adam", 0.1, 0)).Refused("C5"));
  return rows;
}

}  // namespace lockstep
