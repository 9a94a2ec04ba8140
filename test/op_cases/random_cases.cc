#include "test/op_cases/op_case.h"

namespace lockstep {
namespace {

AttributeMap Draw(int64_t stream, int64_t word = 0) { return {{"stream", stream}, {"word", word}}; }

}  // namespace

std::vector<OpCase> RandomCases() {
  std::vector<OpCase> rows;
  for (int64_t word = 0; word < 4; ++word) {
    rows.push_back(Case("random_bits", {I64({6, 2}), I64({6, 2}), I64({6, 2})}, Draw(word * 7, word)));
  }
  const int64_t low = INT64_MIN, high = INT64_MAX, beyond = int64_t{1} << 32;
  rows.push_back(Case("random_bits",
                      {Tensor::Of<int64_t>({6}, {0, -1, low, high, 1, beyond}),
                       Tensor::Of<int64_t>({6}, {0, -1, beyond - 1, beyond, high, 5}),
                       Tensor::Of<int64_t>({6}, {0, -1, high, beyond, low, beyond - 1})},
                      Draw((1 << 24) - 1, 3)));
  rows.push_back(Case("random_bits", {I64({}), I64({}), I64({})}, Draw(3)));
  rows.push_back(Case("random_bits", {I64({0, 3}), I64({0, 3}), I64({0, 3})}, Draw(3)));
  rows.push_back(Case("random_bits", {I64({2}), I64({2}), I64({3})}, Draw(0)).Refused("C1"));
  rows.push_back(Case("random_bits", {I64({2}), I32({2}), I64({2})}, Draw(0)).Refused("C1"));
  rows.push_back(Case("random_bits", {I32({2}), I32({2}), I32({2})}, Draw(0)).Refused("C2"));
  rows.push_back(Case("random_bits", {I64({2}), I64({2}), I64({2})}, Draw(1 << 24)).Refused("C3"));
  rows.push_back(Case("random_bits", {I64({2}), I64({2}), I64({2})}, Draw(-1)).Refused("C3"));
  rows.push_back(Case("random_bits", {I64({2}), I64({2}), I64({2})}, Draw(0, 4)).Refused("C4"));
  rows.push_back(Case("random_bits", {I64({2}), I64({2}), I64({2})}, Draw(0, -1)).Refused("C4"));

  // Before training mode a dropout drops nothing, so the ratio has no effect.
  const auto ratio = [](DType dtype) { return Typed(dtype, {}).In(0.1, 0.9); };
  rows.push_back(Case("dropout", {F64({2, 3}), ratio(DType::kF64)}).ZeroGradient({1}));
  rows.push_back(Case("dropout", {F32({6, 2, 1}), ratio(DType::kF32)}, {{"seed", int64_t{5}}}).ZeroGradient({1}));
  rows.push_back(Case("dropout", {BF16({6}), ratio(DType::kF32)}).ZeroGradient({1}));
  rows.push_back(Case("dropout", {F16({}), ratio(DType::kF64)}).ZeroGradient({1}));
  rows.push_back(Case("dropout", {F32({0, 3}), ratio(DType::kF32)}).NoGradient("no elements"));
  rows.push_back(Case("dropout", {I32({2}), ratio(DType::kF32)}).Refused("C1"));
  rows.push_back(Case("dropout", {F32({2}), F32({2})}).Refused("C2"));
  rows.push_back(Case("dropout", {F32({2}), F16({})}).Refused("C2"));
  return rows;
}

}  // namespace lockstep
