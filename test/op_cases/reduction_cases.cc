#include "test/op_cases/op_case.h"

namespace lockstep {
namespace {

AttributeMap Over(Ints dims) { return {{"dims", std::move(dims)}}; }
AttributeMap ArgMaxOver(int64_t dim) { return {{"dim", dim}}; }

void AppendCumulativeSums(std::vector<OpCase>& rows) {
  const std::string op = "cumulative_sum";
  const auto along = [](int64_t dim, bool exclusive = false, bool reverse = false) {
    return AttributeMap{{"dim", dim}, {"exclusive", exclusive}, {"reverse", reverse}};
  };
  for (bool exclusive : {false, true}) {
    for (bool reverse : {false, true}) {
      for (int64_t dim : {0, 1, 2}) rows.push_back(Case(op, {F64({6, 2, 6})}, along(dim, exclusive, reverse)));
      rows.push_back(Case(op, {F32({6, 5})}, along(1, exclusive, reverse)));
      rows.push_back(Case(op, {I32({6})}, along(0, exclusive, reverse)));
    }
  }
  for (DType dtype : {DType::kBF16, DType::kF16})
    rows.push_back(Case(op, {Typed(dtype, {6, 4})}, along(0)).Tolerance(1e-6, 0.02));
  rows.push_back(Case(op, {U8({6, 2})}, along(0)));
  // Integers wrap around.
  rows.push_back(Case(op, {Tensor::Of<int8_t>({4}, {100, 100, -128, 1})}, along(0)));
  constexpr int64_t kMost = std::numeric_limits<int64_t>::max();
  rows.push_back(Case(op, {Tensor::Of<int64_t>({4}, {kMost, kMost, 3, -1})}, along(0, false, true)));
  // In f32 step by step 2^25 + 1 + 1 + ... stays 2^25.
  rows.push_back(
      Case(op, {Tensor::Of<float>({6}, {0x1p25f, 1, 1, 1, 1, 1})}, along(0)).NoGradient("differences vanish"));
  // Enough for several threads, and more columns than a kernel may take at once.
  rows.push_back(Case(op, {F32({2, 150, 130})}, along(1)).NoGradient("large, and as the others"));
  rows.push_back(Case(op, {F32({390, 100})}, along(1, true, true)).NoGradient("large, and as the others"));
  for (int64_t dim : {0, 1}) rows.push_back(Case(op, {F32({6, 0})}, along(dim)).NoGradient("no elements"));
  for (int64_t dim : {-1, 2}) rows.push_back(Case(op, {F32({2, 3})}, along(dim)).Refused("C1"));
  rows.push_back(Case(op, {F32({})}, along(0)).Refused("C1"));
  rows.push_back(Case(op, {Bool({2, 3})}, along(1)).Refused("C2"));
}

}  // namespace

std::vector<OpCase> ReductionCases() {
  std::vector<OpCase> rows;
  for (const char* op : {"reduce_sum", "reduce_max", "reduce_min", "reduce_prod"}) {
    rows.push_back(Case(op, {F64({2, 3})}, Over({0})));
    rows.push_back(Case(op, {F64({4, 6})}, Over({1})));
    rows.push_back(Case(op, {F32({2, 3, 4, 2}).In(0.5, 2)}, Over({0, 2})));
    rows.push_back(Case(op, {F32({6, 2, 6}).In(0.8, 1.3)}, Over({0, 1, 2})));
    rows.push_back(Case(op, {F32({1, 6})}, Over({0})));
    rows.push_back(Case(op, {F32({6})}, Over({})));
    rows.push_back(Case(op, {F32({})}, Over({})));
    rows.push_back(Case(op, {BF16({4, 3})}, Over({1})).Tolerance(1e-6, 0.02));
    rows.push_back(Case(op, {I32({6, 2})}, Over({0})));
    rows.push_back(Case(op, {U8({2, 3})}, Over({0, 1})));
    rows.push_back(Case(op, {Tensor::Of<int8_t>({3}, {100, 100, -128})}, Over({0})));
    rows.push_back(Case(op, {F32({2, 0})}, Over({1})).NoGradient("no elements"));
    rows.push_back(Case(op, {I64({0})}, Over({0})));
    rows.push_back(Case(op, {F32({2, 3})}, Over({2})).Refused("C1"));
    rows.push_back(Case(op, {F32({2, 3})}, Over({1, 0})).Refused("C1"));
    rows.push_back(Case(op, {F32({2, 3})}, Over({0, 0})).Refused("C1"));
    rows.push_back(Case(op, {Bool({2})}, Over({0})).Refused("C2"));
  }
  // No zero, one, and several among the factors.
  rows.push_back(Case("reduce_prod", {Tensor::Of<double>({3, 3}, {1, -2, 3, 4, 0, 5, 0, 6, 0})}, Over({1})));

  rows.push_back(Case("argmax", {F64({4, 3})}, ArgMaxOver(1)));
  rows.push_back(Case("argmax", {F32({2, 6, 3})}, ArgMaxOver(1)));
  rows.push_back(Case("argmax", {Tensor::Of<float>({2, 3}, {1, 1, 0, 0, 2, 2})}, ArgMaxOver(1)));
  rows.push_back(Case("argmax", {I32({6, 2})}, {{"dim", int64_t{0}}, {"dtype", DType::kI32}}));
  rows.push_back(Case("argmax", {BF16({1})}, {{"dim", int64_t{0}}, {"dtype", DType::kU8}}));
  rows.push_back(Case("argmax", {F32({0, 3})}, ArgMaxOver(1)));
  rows.push_back(Case("argmax", {F32({2, 3})}, ArgMaxOver(2)).Refused("C1"));
  rows.push_back(Case("argmax", {F32({2, 0})}, ArgMaxOver(1)).Refused("C2"));
  rows.push_back(Case("argmax", {F32({2, 3})}, {{"dim", int64_t{0}}, {"dtype", DType::kF32}}).Refused("C3"));
  rows.push_back(Case("argmax", {Bool({2, 3})}, ArgMaxOver(1)).Refused("C4"));

  AppendCumulativeSums(rows);
  return rows;
}

}  // namespace lockstep
