#include <cmath>

#include "test/op_cases/op_case.h"

namespace lockstep {
namespace {

// The operands of the ops for an x of this shape. Variances are positive.
std::vector<CaseOperand> Inference(DType dtype, const Shape& x) {
  const Shape channels = {x[1]};
  return {Typed(dtype, x), Typed(dtype, channels), Typed(dtype, channels), Typed(dtype, channels),
          Typed(dtype, channels).In(0.2, 3)};
}
std::vector<CaseOperand> Training(DType dtype, const Shape& x) {
  return {Typed(dtype, x), Typed(dtype, {x[1]}), Typed(dtype, {x[1]})};
}
std::vector<CaseOperand> Grad(DType dtype, const Shape& x) {
  return {Typed(dtype, x), Typed(dtype, {x[1]}), Typed(dtype, {x[1]}), Typed(dtype, {x[1]}).In(0.2, 3),
          Typed(dtype, x)};
}

std::vector<CaseOperand> Unbiased(DType dtype, const Shape& x) {
  return {Typed(dtype, x), Typed(dtype, {x[1]}).In(0.2, 3)};
}

const AttributeMap kEpsilon = {{"epsilon", 1e-3}};

AttributeMap Statistics(const char* statistics) { return {{"epsilon", 1e-3}, {"statistics", std::string(statistics)}}; }

AttributeMap Groups(int64_t groups) { return {{"epsilon", 1e-3}, {"groups", groups}}; }

using ChangeRow = void (*)(std::vector<CaseOperand>&);

// Adds a negative row for each op with an epsilon.
void AddRefusedNormalization(std::vector<OpCase>& rows, const char* constraint, ChangeRow change,
                             const AttributeMap& attributes = kEpsilon) {
  const Shape x = {2, 3, 4};
  std::vector<CaseOperand> inference = Inference(DType::kF32, x), training = Training(DType::kF32, x);
  std::vector<CaseOperand> grad = Grad(DType::kF32, x);
  for (std::vector<CaseOperand>* operands : {&inference, &training, &grad}) change(*operands);
  rows.push_back(Case("batch_norm_inference", inference, attributes).Refused(constraint));
  rows.push_back(Case("batch_norm_training", training, attributes).Refused(constraint));
  rows.push_back(Case("batch_norm_grad", grad, attributes).Refused(constraint));
}

}  // namespace

std::vector<OpCase> NormalizationCases() {
  std::vector<OpCase> rows;
  for (const Shape& x : {Shape{6, 3, 2, 2}, Shape{4, 6}, Shape{6, 2, 3}, Shape{6, 1, 2, 1, 2}}) {
    for (DType dtype : {DType::kF64, DType::kF32}) {
      rows.push_back(Case("batch_norm_inference", Inference(dtype, x), kEpsilon));
      rows.push_back(Case("batch_norm_training", Training(dtype, x), kEpsilon).GradientOf({0}));
      rows.push_back(Case("batch_norm_grad", Grad(dtype, x), kEpsilon));
      rows.push_back(Case("unbiased_variance", Unbiased(dtype, x)));
    }
  }
  // Groups of several samples. The variance of only two or three numbers may be so small that every rounding shows.
  for (const Shape& x : {Shape{6, 3, 2, 2}, Shape{24, 5}}) {
    for (int64_t groups : {2, 3}) {
      rows.push_back(Case("batch_norm_training", Training(DType::kF32, x), Groups(groups)).GradientOf({0}));
      rows.push_back(Case("batch_norm_grad", Grad(DType::kF32, x), Groups(groups)));
      rows.push_back(Case("unbiased_variance", Unbiased(DType::kF32, x), {{"groups", groups}}));
    }
  }
  // The squared mean is 5,000 times the variance, so one pass with sums in f32 would lose half of the digits.
  for (int64_t groups : {1, 3}) {
    const Shape x = {24, 2, 3};
    AttributeMap one_pass = Groups(groups);
    one_pass["one_pass"] = true;
    std::vector<CaseOperand> training = Training(DType::kF32, x), grad = Grad(DType::kF32, x);
    for (std::vector<CaseOperand>* operands : {&training, &grad}) (*operands)[0] = F32(x).In(20, 21);
    grad[2] = F32({2}).In(20.4, 20.6);
    rows.push_back(Case("batch_norm_training", training, one_pass).GradientOf({0}));
    rows.push_back(Case("batch_norm_grad", grad, one_pass));
    rows.push_back(Case("batch_norm_training", Training(DType::kF64, x), one_pass).GradientOf({0}));
  }
  rows.push_back(Case("batch_norm_inference", Inference(DType::kBF16, {6, 3, 2}), kEpsilon));
  rows.push_back(Case("batch_norm_inference", Inference(DType::kF32, {0, 3, 2}), kEpsilon).NoGradient("no elements"));

  AddRefusedNormalization(rows, "C1", [](std::vector<CaseOperand>& o) {
    for (CaseOperand& operand : o) operand.type.dtype = DType::kI32;
  });
  AddRefusedNormalization(rows, "C2", [](std::vector<CaseOperand>& o) { o[0].type.shape = {6}; });
  AddRefusedNormalization(rows, "C3", [](std::vector<CaseOperand>& o) { o[1].type.shape = {4}; });
  AddRefusedNormalization(rows, "C3", [](std::vector<CaseOperand>& o) { o[2].type.dtype = DType::kF64; });
  AddRefusedNormalization(rows, "C4", [](std::vector<CaseOperand>&) {}, {{"epsilon", -1.0}});
  AddRefusedNormalization(rows, "C4", [](std::vector<CaseOperand>&) {}, {{"epsilon", std::nan("")}});
  const Shape x = {2, 3, 4}, empty = {0, 3, 4};
  rows.push_back(Case("batch_norm_training", Training(DType::kF32, x), Statistics("world")).Refused("C5"));
  rows.push_back(Case("batch_norm_grad", Grad(DType::kF32, x), Statistics("world")).Refused("C5"));
  rows.push_back(Case("batch_norm_training", Training(DType::kF32, empty), kEpsilon).Refused("C6"));
  rows.push_back(Case("batch_norm_grad", Grad(DType::kF32, empty), kEpsilon).Refused("C6"));
  for (int64_t groups : {0, -2, 3}) {
    rows.push_back(Case("batch_norm_training", Training(DType::kF32, x), Groups(groups)).Refused("C7"));
    rows.push_back(Case("batch_norm_grad", Grad(DType::kF32, x), Groups(groups)).Refused("C7"));
  }
  rows.push_back(Case("unbiased_variance", Unbiased(DType::kI32, x)).Refused("C1"));
  std::vector<CaseOperand> unbiased = Unbiased(DType::kF32, x);
  unbiased[0].type.shape = {6};
  rows.push_back(Case("unbiased_variance", unbiased).Refused("C2"));
  unbiased = Unbiased(DType::kF32, x);
  unbiased[1].type.shape = {4};
  rows.push_back(Case("unbiased_variance", unbiased).Refused("C3"));
  const std::vector<CaseOperand> good = Unbiased(DType::kF32, x);
  rows.push_back(Case("unbiased_variance", good, {{"statistics", std::string("world")}}).Refused("C5"));
  rows.push_back(Case("unbiased_variance", Unbiased(DType::kF32, empty)).Refused("C6"));
  rows.push_back(Case("unbiased_variance", good, {{"groups", int64_t{3}}}).Refused("C7"));
  rows.push_back(Case("unbiased_variance", Unbiased(DType::kF32, {1, 3, 1})).Refused("C8"));
  rows.push_back(Case("unbiased_variance", Unbiased(DType::kF32, {4, 3}), {{"groups", int64_t{4}}}).Refused("C8"));
  std::vector<CaseOperand> grad = Grad(DType::kF32, x);
  grad[4].type.shape = {2, 3, 5};
  rows.push_back(Case("batch_norm_grad", grad, kEpsilon).Refused("C8"));
  return rows;
}

}  // namespace lockstep
