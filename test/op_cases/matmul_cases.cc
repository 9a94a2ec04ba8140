#include "test/op_cases/op_case.h"

namespace lockstep {

std::vector<OpCase> MatMulCases() {
  std::vector<OpCase> rows;
  for (bool transpose_a : {false, true}) {
    for (bool transpose_b : {false, true}) {
      const AttributeMap attributes = {{"transpose_a", transpose_a}, {"transpose_b", transpose_b}};
      const Shape a = transpose_a ? Shape{4, 2} : Shape{2, 4}, b = transpose_b ? Shape{3, 4} : Shape{4, 3};
      rows.push_back(Case("matmul", {F64(a), F64(b)}, attributes));
      const Shape many_a = transpose_a ? Shape{6, 2, 3, 4} : Shape{6, 2, 4, 3},
                  many_b = transpose_b ? Shape{6, 2, 2, 3} : Shape{6, 2, 3, 2};
      rows.push_back(Case("matmul", {F32(many_a), F32(many_b)}, attributes));
    }
  }
  rows.push_back(Case("matmul", {F32({6, 12}), F32({12, 6})}));
  // Rows in several dimensions, and a sum over the products of a batch.
  rows.push_back(Case("matmul", {F64({6, 12, 4}), F64({4, 6})}));
  rows.push_back(Case("matmul", {F32({2, 6, 1, 6}), F32({2, 6})}, {{"transpose_b", true}}));
  rows.push_back(Case("matmul", {BF16({2, 3, 2}), BF16({2, 1})}));
  rows.push_back(Case("matmul", {F32({6, 0, 2}), F32({2, 3})}).NoGradient("no elements"));
  const AttributeMap sum = {{"transpose_a", true}, {"sum_batch", true}};
  rows.push_back(Case("matmul", {F64({6, 12, 6}), F64({6, 12, 6})}, sum));
  rows.push_back(Case("matmul", {F32({2, 1, 6, 3}), F32({2, 1, 6, 2})}, sum));
  rows.push_back(Case("matmul", {I32({2, 2, 3}), I32({2, 2, 2})}, sum));
  rows.push_back(Case("matmul", {F32({4, 3}), F32({4, 2})}, sum));
  rows.push_back(Case("matmul", {BF16({2, 3}), BF16({3, 1})}));
  // Sums that are not rounded to 16 bits; no other dtype needs this.
  const AttributeMap wide = {{"wide_result", true}};
  rows.push_back(Case("matmul", {BF16({6, 4}), BF16({4, 6})}, wide));
  rows.push_back(Case("matmul", {F16({2, 3, 4}), F16({2, 4, 3})}, wide));
  rows.push_back(Case("matmul", {BF16({4, 0}), BF16({0, 2})}, wide).NoGradient("no elements"));
  rows.push_back(Case("matmul", {BF16({6, 2, 3}), BF16({6, 2, 1})},
                      {{"transpose_a", true}, {"sum_batch", true}, {"wide_result", true}}));
  rows.push_back(Case("matmul", {F32({2, 3}), F32({3, 1})}, wide));
  rows.push_back(Case("matmul", {I32({2, 3}), I32({3, 2})}));
  rows.push_back(Case("matmul", {F32({2, 0}), F32({0, 2})}).NoGradient("no elements"));
  rows.push_back(Case("matmul", {F32({0, 2, 3}), F32({0, 3, 2})}).NoGradient("no elements"));
  rows.push_back(Case("matmul", {F32({0, 3}), F32({3, 2})}).NoGradient("no elements"));
  rows.push_back(Case("matmul", {F32({2, 3}), F64({3, 2})}).Refused("C1"));
  rows.push_back(Case("matmul", {F32({2, 3}), F32({1, 3, 2})}).Refused("C2"));
  rows.push_back(Case("matmul", {F32({3}), F32({3})}).Refused("C2"));
  rows.push_back(Case("matmul", {F32({2, 3, 2}), F32({3, 2})}, {{"transpose_a", true}}).Refused("C2"));
  rows.push_back(Case("matmul", {F32({2, 3, 4}), F32({3, 2})}).Refused("C4"));
  rows.push_back(Case("matmul", {F32({2, 3, 2}), F32({2, 3, 2})}, {{"sum_batch", true}}).Refused("C5"));
  rows.push_back(
      Case("matmul", {F32({2, 3, 2}), F32({2, 3, 2})}, {{"sum_batch", true}, {"transpose_b", true}}).Refused("C5"));
  const AttributeMap both = {{"transpose_a", true}, {"transpose_b", true}, {"sum_batch", true}};
  rows.push_back(Case("matmul", {F32({2, 2, 2}), F32({2, 2, 2})}, both).Refused("C5"));
  rows.push_back(Case("matmul", {F32({2, 3, 2}), F32({2, 2})}, sum).Refused("C2"));
  rows.push_back(Case("matmul", {F32({2, 2, 3}), F32({3, 3, 2})}).Refused("C3"));
  rows.push_back(Case("matmul", {F32({2, 3}), F32({2, 3})}).Refused("C4"));
  return rows;
}

}  // namespace lockstep
