#include "test/op_cases/op_case.h"

namespace lockstep {
namespace {

AttributeMap Over(Ints dims) { return {{"dims", std::move(dims)}}; }
AttributeMap ArgOver(int64_t dim, bool last = false) { return {{"dim", dim}, {"last", last}}; }

AttributeMap AlongDims(int64_t dim, bool exclusive = false, bool reverse = false) {
  return {{"dim", dim}, {"exclusive", exclusive}, {"reverse", reverse}};
}

void AppendCumulatives(const std::string& op, std::vector<OpCase>& rows) {
  for (bool exclusive : {false, true}) {
    for (bool reverse : {false, true}) {
      for (int64_t dim : {0, 1, 2}) rows.push_back(Case(op, {F64({6, 2, 6})}, AlongDims(dim, exclusive, reverse)));
      rows.push_back(Case(op, {F32({6, 5})}, AlongDims(1, exclusive, reverse)));
      rows.push_back(Case(op, {I32({6})}, AlongDims(0, exclusive, reverse)));
    }
  }
  for (DType dtype : {DType::kBF16, DType::kF16})
    rows.push_back(Case(op, {Typed(dtype, {6, 4})}, AlongDims(0)).Tolerance(1e-6, 0.02));
  rows.push_back(Case(op, {U8({6, 2})}, AlongDims(0)));
  // Integers wrap around.
  rows.push_back(Case(op, {Tensor::Of<int8_t>({4}, {100, 100, -128, 1})}, AlongDims(0)));
  constexpr int64_t kMost = std::numeric_limits<int64_t>::max();
  rows.push_back(Case(op, {Tensor::Of<int64_t>({4}, {kMost, kMost, 3, -1})}, AlongDims(0, false, true)));
  // Large enough for several threads, with more columns than a kernel may process at once.
  rows.push_back(Case(op, {F32({2, 150, 130}).In(0.9, 1.1)}, AlongDims(1)).NoGradient("smaller rows cover it"));
  rows.push_back(
      Case(op, {F32({390, 100}).In(0.9, 1.1)}, AlongDims(1, true, true)).NoGradient("smaller rows cover it"));
  for (int64_t dim : {0, 1}) rows.push_back(Case(op, {F32({6, 0})}, AlongDims(dim)).NoGradient("no elements"));
  for (int64_t dim : {-1, 2}) rows.push_back(Case(op, {F32({2, 3})}, AlongDims(dim)).Refused("C1"));
  rows.push_back(Case(op, {F32({})}, AlongDims(0)).Refused("C1"));
  rows.push_back(Case(op, {Bool({2, 3})}, AlongDims(1)).Refused("C2"));
}

void AppendArgs(const std::string& op, std::vector<OpCase>& rows) {
  for (bool last : {false, true}) {
    rows.push_back(Case(op, {F64({4, 3})}, ArgOver(1, last)));
    rows.push_back(Case(op, {F32({2, 6, 3})}, ArgOver(1, last)));
    rows.push_back(Case(op, {Tensor::Of<float>({2, 3}, {1, 1, 0, 0, 2, 2})}, ArgOver(1, last)));
    rows.push_back(Case(op, {F32({0, 3})}, ArgOver(1, last)));
  }
  rows.push_back(Case(op, {I32({6, 2})}, {{"dim", int64_t{0}}, {"dtype", DType::kI32}}));
  rows.push_back(Case(op, {BF16({1})}, {{"dim", int64_t{0}}, {"dtype", DType::kU8}}));
  rows.push_back(Case(op, {F32({2, 3})}, ArgOver(2)).Refused("C1"));
  rows.push_back(Case(op, {F32({2, 0})}, ArgOver(1)).Refused("C2"));
  rows.push_back(Case(op, {F32({2, 3})}, {{"dim", int64_t{0}}, {"dtype", DType::kF32}}).Refused("C3"));
  rows.push_back(Case(op, {Bool({2, 3})}, ArgOver(1)).Refused("C4"));
}

void AppendTopKs(std::vector<OpCase>& rows) {
  const std::string op = "top_k";
  for (bool largest : {true, false}) {
    const auto first = [&](int64_t k, int64_t dim) {
      return AttributeMap{{"dim", dim}, {"k", k}, {"largest", largest}};
    };
    rows.push_back(Case(op, {F64({6, 2, 6})}, first(3, 0)));
    rows.push_back(Case(op, {F64({6, 2, 6})}, first(1, 1)));
    rows.push_back(Case(op, {F32({6, 2, 6})}, first(6, 2)));
    rows.push_back(Case(op, {F32({6})}, first(2, 0)));
    rows.push_back(Case(op, {BF16({6, 4})}, first(3, 1)));
    rows.push_back(Case(op, {F16({4, 6})}, first(2, 0)));
    rows.push_back(Case(op, {I32({6, 6})}, first(4, 1)));  // with ties
    rows.push_back(Case(op, {U8({6, 8})}, first(8, 1)));
    rows.push_back(Case(op, {Tensor::Of<uint64_t>({3}, {1, ~uint64_t{0}, ~uint64_t{0} - 1})}, first(3, 0)));
    rows.push_back(Case(op, {Tensor::Of<float>({6}, {1, 3, 1, 3, 2, 1})}, first(5, 0)).NoGradient("ties"));
    rows.push_back(Case(op, {F32({50, 200})}, first(10, 1)).NoGradient("smaller rows cover it"));
    rows.push_back(Case(op, {F32({6, 1})}, first(0, 1)).NoGradient("no elements"));
    rows.push_back(Case(op, {F32({6, 0})}, first(0, 1)).NoGradient("no elements"));
    rows.push_back(Case(op, {F32({0, 3})}, first(2, 1)).NoGradient("no elements"));
    rows.push_back(Case(op, {F32({2, 3})}, first(1, 2)).Refused("C1"));
    for (int64_t k : {-1, 4}) rows.push_back(Case(op, {F32({2, 3})}, first(k, 1)).Refused("C2"));
    rows.push_back(Case(op, {Bool({2, 3})}, first(1, 1)).Refused("C3"));
  }
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

  for (const char* op : {"argmax", "argmin"}) AppendArgs(op, rows);
  AppendTopKs(rows);

  for (const char* op : {"cumulative_sum", "cumulative_prod"}) AppendCumulatives(op, rows);
  // In f32, adding one at a time, 2^25 + 1 + 1 + ... stays 2^25.
  rows.push_back(Case("cumulative_sum", {Tensor::Of<float>({6}, {0x1p25f, 1, 1, 1, 1, 1})}, AlongDims(0))
                     .NoGradient("differences vanish"));
  // No zero, one, and several among the factors.
  for (bool exclusive : {false, true}) {
    for (bool reverse : {false, true}) {
      rows.push_back(Case("cumulative_prod", {Tensor::Of<double>({3, 4}, {1, -2, 3, 4, 5, 0, 6, 7, 2, 0, 3, 0})},
                          AlongDims(1, exclusive, reverse)));
    }
  }
  return rows;
}

}  // namespace lockstep
