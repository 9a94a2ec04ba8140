#include "test/op_cases/op_case.h"

namespace lockstep {
namespace {

CaseOperand Labels(DType dtype, Shape shape, int64_t classes) {
  return Typed(dtype, std::move(shape)).In(0, static_cast<double>(classes - 1));
}

}  // namespace

std::vector<OpCase> SoftmaxCases() {
  std::vector<OpCase> rows;
  for (const char* op : {"softmax", "log_softmax"}) {
    for (int64_t dim : {0, 1, 2}) rows.push_back(Case(op, {F64({6, 2, 6})}, {{"dim", dim}}));
    rows.push_back(Case(op, {F32({6, 5})}, {{"dim", int64_t{1}}}));
    rows.push_back(Case(op, {F16({6, 5})}, {{"dim", int64_t{1}}}));
    rows.push_back(Case(op, {F64({2, 3}).In(-1000, 1000)}, {{"dim", int64_t{1}}}).NoGradient("differences overflow"));
    rows.push_back(Case(op, {F32({6, 0})}, {{"dim", int64_t{1}}}).NoGradient("no elements"));
    rows.push_back(Case(op, {I32({2, 3})}, {{"dim", int64_t{1}}}).Refused("C1"));
    rows.push_back(Case(op, {F32({2, 3})}, {{"dim", int64_t{2}}}).Refused("C2"));
    rows.push_back(Case(op, {F32({2, 3})}, {{"dim", int64_t{-1}}}).Refused("C2"));
  }
  const AttributeMap scale = {{"scale", 0.125}};
  const std::string op = "softmax_cross_entropy";
  rows.push_back(Case(op, {F64({6, 4}), Labels(DType::kI64, {6}, 4)}, scale).GradientOf({0}));
  rows.push_back(Case(op, {F32({12, 10}), Labels(DType::kI32, {12}, 10)}, scale).GradientOf({0}));
  rows.push_back(Case(op, {BF16({6, 4}), Labels(DType::kI64, {6}, 4)}, scale).GradientOf({0}));
  rows.push_back(Case(op, {F32({6, 3, 2, 6}), Labels(DType::kI64, {6, 2, 6}, 3)}, scale).GradientOf({0}));
  // More positions than are computed side by side, and a remainder.
  rows.push_back(Case(op, {F32({2, 3, 6, 6}), Labels(DType::kI64, {2, 6, 6}, 3)}, scale).GradientOf({0}));
  // All extents are equal, so that labels could be split along another dimension than logits and still fit.
  rows.push_back(Case(op, {F64({6, 6, 6, 6}), Labels(DType::kI64, {6, 6, 6}, 6)}, scale)
                     .GradientOf({0})
                     .NoGradient("other rows cover it"));
  rows.push_back(Case(op, {F32({0, 4}), I64({0})}, scale).NoGradient("no elements"));
  rows.push_back(Case(op, {F32({6, 4, 0}), I64({6, 0})}, scale).NoGradient("no elements"));
  rows.push_back(Case(op, {I32({6, 4}), I64({6})}, scale).Refused("C1"));
  rows.push_back(Case(op, {F32({6, 4}), F32({6})}, scale).Refused("C2"));
  rows.push_back(Case(op, {F32({6}), I64({6})}, scale).Refused("C3"));
  rows.push_back(Case(op, {F32({6, 4}), I64({4})}, scale).Refused("C4"));
  rows.push_back(Case(op, {F32({6, 4, 2}), I64({6})}, scale).Refused("C4"));
  rows.push_back(Case(op, {F32({2, 4}), Tensor::Of({2}, std::vector<int64_t>{0, 4})}, scale).Refused("C5"));
  rows.push_back(Case(op, {F32({2, 4}), Tensor::Of({2}, std::vector<int32_t>{-1, 0})}, scale).Refused("C5"));
  return rows;
}

}  // namespace lockstep
