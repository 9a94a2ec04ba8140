#include "test/op_cases/op_case.h"

#include <cmath>
#include <random>

namespace lockstep {
namespace {

void Append(std::vector<OpCase>& all, std::vector<OpCase> rows) {
  for (OpCase& row : rows) all.push_back(std::move(row));
}

Tensor RandomTensor(const CaseOperand& operand, std::mt19937_64& random) {
  Tensor tensor(operand.type);
  DispatchDType(operand.type.dtype, [&](auto tag) {
    using T = typename decltype(tag)::type;
    for (T& element : tensor.mutable_data<T>()) {
      // Not std::uniform_real_distribution: its results differ between libraries.
      const double unit = static_cast<double>(random() >> 11) * 0x1p-53;
      const double value = IsFloat(operand.type.dtype)
                               ? operand.low + (operand.high - operand.low) * unit
                               : std::floor(operand.low + (operand.high - operand.low + 1) * unit);
      element = ConvertElement<T>(value);
    }
  });
  return tensor;
}

}  // namespace

std::string OpCase::ToString() const {
  std::string text = op;
  for (size_t i = 0; i < operands.size(); ++i) text += (i ? ", " : " ") + operands[i].type.ToString();
  if (!attributes.empty()) text += " " + AttributesToString(attributes);
  if (ranks > 0) text += " on " + std::to_string(ranks) + " ranks";
  if (!refused.empty()) text += " refused by " + refused;
  return text;
}

std::vector<Tensor> CaseInputs(const OpCase& row, uint64_t seed) {
  std::mt19937_64 random(seed);
  std::vector<Tensor> inputs;
  for (const CaseOperand& operand : row.operands)
    inputs.push_back(operand.value ? *operand.value : RandomTensor(operand, random));
  return inputs;
}

const std::vector<OpCase>& AllOpCases() {
  static const std::vector<OpCase> rows = [] {
    std::vector<OpCase> all;
    Append(all, ElementwiseCases());
    Append(all, ShapeCases());
    Append(all, ReductionCases());
    Append(all, MatMulCases());
    Append(all, CollectiveCases());
    Append(all, FusionCases());
    Append(all, ConvolutionCases());
    Append(all, PoolingCases());
    Append(all, NormalizationCases());
    Append(all, SoftmaxCases());
    Append(all, OptimizerCases());
    return all;
  }();
  return rows;
}

}  // namespace lockstep
