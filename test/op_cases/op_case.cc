#include "test/op_cases/op_case.h"

#include <map>
#include <random>

#include "bazel/num_cases.h"
#include "core/random_tensor.h"

namespace lockstep {
namespace {

void Append(std::vector<OpCase>& all, std::vector<OpCase> rows) {
  for (OpCase& row : rows) all.push_back(std::move(row));
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
    inputs.push_back(operand.value ? *operand.value : RandomTensor(operand.type, random, operand.low, operand.high));
  return inputs;
}

const std::vector<OpCase>& AllOpCases() {
  static const std::vector<OpCase> rows = [] {
    std::vector<OpCase> all;
    Append(all, ElementwiseCases());
    Append(all, RandomCases());
    Append(all, ShapeCases());
    Append(all, ReductionCases());
    Append(all, IndexingCases());
    Append(all, MatMulCases());
    Append(all, CollectiveCases());
    Append(all, ParameterServerCases());
    Append(all, FusionCases());
    Append(all, ScanCases());
    Append(all, ConvolutionCases());
    Append(all, PoolingCases());
    Append(all, NormalizationCases());
    Append(all, SoftmaxCases());
    Append(all, AttentionCases());
    Append(all, OptimizerCases());
    return all;
  }();
  return rows;
}

std::vector<OpCase> AcceptedOpCases() {
  std::vector<OpCase> rows;
  for (const OpCase& row : AllOpCases()) {
    if (row.refused.empty()) rows.push_back(row);
  }
  return rows;
}

std::vector<OpCase> RefusedOpCases() {
  std::vector<OpCase> rows;
  for (const OpCase& row : AllOpCases()) {
    if (!row.refused.empty()) rows.push_back(row);
  }
  return rows;
}

std::vector<OpCase> SomeOf(const std::vector<OpCase>& rows) {
  if (TestsEverything()) return rows;
  std::map<std::string, int> count;
  std::vector<OpCase> some;
  for (const OpCase& row : rows) {
    if (count[row.op]++ % 3 == 0) some.push_back(row);
  }
  return some;
}

}  // namespace lockstep
