#include "test/op_cases/op_case.h"

namespace lockstep {
namespace {

constexpr int64_t kHuge = int64_t{1} << 40;

// Indices into a dimension of `extent`, from either end.
CaseOperand Indices(Shape shape, int64_t extent, DType dtype = DType::kI64) {
  return Typed(dtype, std::move(shape)).In(-static_cast<double>(extent), static_cast<double>(extent - 1));
}

AttributeMap AlongDim(int64_t dim, int64_t batch_dims = 0) { return {{"dim", dim}, {"batch_dims", batch_dims}}; }
AttributeMap Into(int64_t size, int64_t dim, int64_t batch_dims = 0) {
  return {{"dim", dim}, {"batch_dims", batch_dims}, {"size", size}};
}
AttributeMap By(std::string kind, int64_t dim, int64_t batch_dims = 0) {
  return {{"dim", dim}, {"batch_dims", batch_dims}, {"kind", std::move(kind)}};
}

void AppendGathers(std::vector<OpCase>& rows) {
  const std::string op = "gather";
  rows.push_back(Case(op, {F64({12, 6}), Indices({6}, 12)}, AlongDim(0)));
  rows.push_back(Case(op, {F64({2, 12}), Indices({6, 2}, 12)}, AlongDim(1)));
  rows.push_back(Case(op, {F32({6, 12, 2}), Indices({6, 6}, 12, DType::kI32)}, AlongDim(1)));
  rows.push_back(Case(op, {F64({6, 12, 3}), Indices({6, 2}, 12)}, AlongDim(1, 1)));
  rows.push_back(Case(op, {F64({6, 2, 12, 2}), Indices({6, 6}, 12)}, AlongDim(2, 1)));
  rows.push_back(Case(op, {F64({6, 2, 12}), Indices({6, 2, 4}, 12)}, AlongDim(2, 2)));
  rows.push_back(Case(op, {F64({6, 12}), Indices({6}, 12)}, AlongDim(1, 1)));
  rows.push_back(Case(op, {F32({6, 4}), Indices({}, 6)}, AlongDim(0)));
  for (DType dtype : {DType::kBF16, DType::kF16, DType::kU8, DType::kI16, DType::kI64, DType::kBool})
    rows.push_back(Case(op, {Typed(dtype, {6}).In(0, 1), Indices({6, 2}, 6)}, AlongDim(0)));
  // Large enough for several threads, by rows and by elements.
  rows.push_back(Case(op, {F32({300, 80}), Indices({400}, 300)}, AlongDim(0)).NoGradient("smaller rows cover it"));
  rows.push_back(Case(op, {F32({30, 50}), Indices({30, 600}, 50)}, AlongDim(1, 1)).NoGradient("smaller rows cover it"));
  rows.push_back(Case(op, {F32({6, 0}), Indices({3}, 6)}, AlongDim(0)).NoGradient("no elements"));
  rows.push_back(Case(op, {F32({0, 4}), I64({0})}, AlongDim(0)).NoGradient("no elements"));
  rows.push_back(Case(op, {F32({6, 4}), F32({2})}, AlongDim(0)).Refused("C1"));
  for (int64_t dim : {-1, 2}) rows.push_back(Case(op, {F32({6, 4}), Indices({2}, 4)}, AlongDim(dim)).Refused("C2"));
  for (int64_t batch_dims : {-1, 1, 2})
    rows.push_back(Case(op, {F32({6, 4}), Indices({6}, 4)}, AlongDim(0, batch_dims)).Refused("C3"));
  rows.push_back(Case(op, {F32({6, 4}), Indices({}, 4)}, AlongDim(1, 1)).Refused("C3"));
  rows.push_back(Case(op, {F32({6, 4}), Indices({5, 2}, 4)}, AlongDim(1, 1)).Refused("C4"));
  rows.push_back(Case(op, {F32({2, kHuge}), Indices({1 << 20}, 2)}, AlongDim(0)).Refused("C5"));
  rows.push_back(Case(op, {F32({6, 4}), Tensor::Of<int64_t>({2}, {0, 6})}, AlongDim(0)).Refused("C6"));
  rows.push_back(Case(op, {F32({6, 4}), Tensor::Of<int32_t>({2}, {-7, 0})}, AlongDim(0)).Refused("C6"));
  rows.push_back(Case(op, {F32({0, 4}), Tensor::Of<int64_t>({1}, {0})}, AlongDim(0)).Refused("C6"));
}

void AppendScatterSums(std::vector<OpCase>& rows) {
  const std::string op = "scatter_sum";
  rows.push_back(Case(op, {Indices({6}, 12), F64({6, 6})}, Into(12, 0)));
  rows.push_back(Case(op, {Indices({6}, 2), F64({6, 6})}, Into(2, 0)));  // several updates of one element
  rows.push_back(Case(op, {Indices({6, 2}, 12, DType::kI32), F32({6, 6, 2, 3})}, Into(12, 1)));
  rows.push_back(Case(op, {Indices({6, 4}, 12), F64({6, 4, 3})}, Into(12, 1, 1)));
  rows.push_back(Case(op, {Indices({6, 6}, 12), F64({6, 2, 6, 2})}, Into(12, 2, 1)));
  rows.push_back(Case(op, {Indices({6, 2, 4}, 12), F64({6, 2, 4})}, Into(12, 2, 2)));
  rows.push_back(Case(op, {Indices({}, 6), F32({4})}, Into(6, 0)));
  for (DType dtype : {DType::kBF16, DType::kF16, DType::kU8, DType::kI16, DType::kI64})
    rows.push_back(Case(op, {Indices({6}, 3), Typed(dtype, {6}).In(0, 5)}, Into(3, 0)));
  // Integers wrap around.
  rows.push_back(
      Case(op, {Tensor::Of<int64_t>({4}, {0, 0, 1, 0}), Tensor::Of<int8_t>({4}, {100, 100, -128, 1})}, Into(2, 0)));
  constexpr int64_t kMost = std::numeric_limits<int64_t>::max();
  rows.push_back(
      Case(op, {Tensor::Of<int64_t>({3}, {0, 0, 1}), Tensor::Of<int64_t>({3}, {kMost, kMost, -1})}, Into(2, 0)));
  // In bf16, adding one at a time, 256 + 1 + 1 + ... stays 256.
  rows.push_back(Case(op,
                      {Tensor::Of<int64_t>({9}, Ints(9, 0)),
                       Tensor::Of<float>({9}, {256, 1, 1, 1, 1, 1, 1, 1, 1}).Converted(DType::kBF16)},
                      Into(1, 0)));
  // Large enough for several threads, by rows and by elements.
  rows.push_back(Case(op, {Indices({400}, 50), F32({400, 80})}, Into(50, 0)).NoGradient("smaller rows cover it"));
  rows.push_back(
      Case(op, {Indices({30, 600}, 50), F32({30, 600})}, Into(50, 1, 1)).NoGradient("smaller rows cover it"));
  rows.push_back(Case(op, {I64({0}), F32({0, 4})}, Into(6, 0)).NoGradient("no elements"));
  rows.push_back(Case(op, {I64({0}), F32({0, 4})}, Into(0, 0)).NoGradient("no elements"));
  rows.push_back(Case(op, {F32({2}), F32({2})}, Into(4, 0)).Refused("C1"));
  rows.push_back(Case(op, {Indices({2}, 4), F32({2})}, Into(4, 0, 1)).Refused("C2"));
  rows.push_back(Case(op, {Indices({2}, 4), F32({2})}, Into(4, 0, -1)).Refused("C2"));
  rows.push_back(Case(op, {Indices({2}, 4), F32({2})}, Into(4, 1)).Refused("C2"));
  rows.push_back(Case(op, {Indices({}, 4), F32({2})}, Into(4, 1, 1)).Refused("C2"));
  rows.push_back(Case(op, {Indices({2}, 4), F32({3})}, Into(4, 0)).Refused("C3"));
  rows.push_back(Case(op, {Indices({2, 3}, 4), F32({3, 3})}, Into(4, 1, 1)).Refused("C3"));
  rows.push_back(Case(op, {Indices({2}, 4), F32({2})}, Into(-1, 0)).Refused("C4"));
  rows.push_back(Case(op, {Indices({2}, 4), F32({2, 1 << 20})}, Into(kHuge, 0)).Refused("C4"));
  rows.push_back(Case(op, {Indices({2}, 4), Bool({2})}, Into(4, 0)).Refused("C5"));
  rows.push_back(Case(op, {Tensor::Of<int64_t>({2}, {0, 4}), F32({2})}, Into(4, 0)).Refused("C6"));
  rows.push_back(Case(op, {Tensor::Of<int32_t>({2}, {-5, 0}), F32({2})}, Into(4, 0)).Refused("C6"));
}

void AppendScatters(std::vector<OpCase>& rows) {
  const std::string op = "scatter";
  for (const char* kind : {"replace", "min", "max", "prod"}) {
    rows.push_back(Case(op, {F64({12, 6}), Indices({6}, 12), F64({6, 6})}, By(kind, 0)));
    rows.push_back(Case(op, {F64({6, 12, 3}), Indices({6, 2}, 12), F64({6, 6, 2, 3})}, By(kind, 1)));
    rows.push_back(Case(op, {F64({6, 12, 3}), Indices({6, 4}, 12), F64({6, 4, 3})}, By(kind, 1, 1)));
    rows.push_back(Case(op, {F64({6, 2, 12, 2}), Indices({6, 6}, 12), F64({6, 2, 6, 2})}, By(kind, 2, 1)));
    rows.push_back(Case(op, {F32({6, 2, 12}), Indices({6, 2, 4}, 12, DType::kI32), F32({6, 2, 4})}, By(kind, 2, 2)));
    rows.push_back(Case(op, {F32({6, 4}), Indices({}, 6), F32({4}).In(2.5, 3)}, By(kind, 0))
                       .ZeroGradient(std::string(kind) == "min" ? std::vector<size_t>{2} : std::vector<size_t>{}));
    // Several updates of one element.
    rows.push_back(Case(op, {F64({3, 6}), Tensor::Of<int64_t>({6}, {0, 2, 0, -1, 0, 0}), F64({6, 6})}, By(kind, 0)));
    for (DType dtype : {DType::kBF16, DType::kF16, DType::kU8, DType::kI16, DType::kI64})
      rows.push_back(
          Case(op, {Typed(dtype, {12}).In(1, 3), Indices({6}, 12), Typed(dtype, {6}).In(1, 3)}, By(kind, 0)));
    rows.push_back(Case(op, {F32({60, 300}), Indices({100}, 60), F32({100, 300})}, By(kind, 0))
                       .NoGradient("smaller rows cover it"));
    rows.push_back(Case(op, {F32({6, 0}), Indices({3}, 6), F32({3, 0})}, By(kind, 0)).NoGradient("no elements"));
    rows.push_back(Case(op, {F32({6, 2}), I64({0}), F32({0, 2})}, By(kind, 0)).NoGradient("no updates"));
  }
  // Zeros among the factors: in x, in the updates, in both; one and several.
  rows.push_back(Case(op,
                      {Tensor::Of<double>({5}, {0, 2, 0, 3, 4}), Tensor::Of<int64_t>({7}, {0, 1, 1, 2, 3, 3, 1}),
                       Tensor::Of<double>({7}, {5, 0, 6, 0, 0, 0, 7})},
                      By("prod", 0)));
  rows.push_back(Case(op, {Bool({6}), Indices({3}, 6), Bool({3})}, By("replace", 0)));
  rows.push_back(Case(op, {F32({6, 4}), F32({2}), F32({2, 4})}, By("replace", 0)).Refused("C1"));
  rows.push_back(Case(op, {F32({6, 4}), Indices({2}, 6), F32({2, 4})}, By("replace", 2)).Refused("C2"));
  rows.push_back(Case(op, {F32({6, 4}), Indices({2}, 6), F32({2, 4})}, By("replace", 0, 1)).Refused("C3"));
  rows.push_back(Case(op, {F32({6, 4}), Indices({2, 2}, 4), F32({6, 2})}, By("replace", 1, 1)).Refused("C4"));
  rows.push_back(Case(op, {F32({6, 4}), Indices({2}, 6), F32({2, 3})}, By("replace", 0)).Refused("C5"));
  rows.push_back(Case(op, {F32({6, 4}), Indices({2}, 6), F64({2, 4})}, By("replace", 0)).Refused("C5"));
  rows.push_back(Case(op, {F32({6, 4}), Indices({2}, 6), F32({2, 4})}, By("sum", 0)).Refused("C6"));
  rows.push_back(Case(op, {Bool({6}), Indices({2}, 6), Bool({2})}, By("max", 0)).Refused("C7"));
  rows.push_back(Case(op, {F32({6}), Tensor::Of<int64_t>({2}, {0, -7}), F32({2})}, By("replace", 0)).Refused("C8"));
}

}  // namespace

std::vector<OpCase> IndexingCases() {
  std::vector<OpCase> rows;
  AppendGathers(rows);
  AppendScatterSums(rows);
  AppendScatters(rows);
  return rows;
}

}  // namespace lockstep
