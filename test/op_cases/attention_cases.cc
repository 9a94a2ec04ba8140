#include <cmath>
#include <limits>

#include "test/op_cases/op_case.h"

namespace lockstep {
namespace {

// The extents of one row: [batch..., heads, queries, size] and so on.
struct Extents {
  std::vector<int64_t> batch, key_batch;
  int64_t queries, keys, size, value_size;
};

Shape With(std::vector<int64_t> batch, std::vector<int64_t> last) {
  batch.insert(batch.end(), last.begin(), last.end());
  return Shape(std::move(batch));
}

std::vector<CaseOperand> Forward(DType dtype, const Extents& e) {
  return {Typed(dtype, With(e.batch, {e.queries, e.size})), Typed(dtype, With(e.key_batch, {e.keys, e.size})),
          Typed(dtype, With(e.key_batch, {e.keys, e.value_size}))};
}

// Operands of a gradient. The log_sum_exp has a plausible size: exponentials of much larger scores would drown the
// others.
std::vector<CaseOperand> Backward(DType dtype, const Extents& e) {
  const DType statistics = dtype == DType::kF64 ? DType::kF64 : DType::kF32;
  std::vector<CaseOperand> operands = Forward(dtype, e);
  operands.push_back(Typed(statistics, With(e.batch, {e.queries})).In(2, 4));
  operands.push_back(Typed(dtype, With(e.batch, {e.queries, e.value_size})));
  operands.push_back(Typed(statistics, With(e.batch, {e.queries})));
  return operands;
}

AttributeMap Scaled(bool causal = false, int64_t past = 0, double softcap = 0) {
  return {{"scale", 0.5}, {"causal", causal}, {"past", past}, {"softcap", softcap}};
}

std::vector<CaseOperand> And(std::vector<CaseOperand> operands, CaseOperand mask) {
  operands.push_back(std::move(mask));
  return operands;
}

// Adds a row of attention and one of each gradient, with the mask if there is one.
void AddAttention(std::vector<OpCase>& rows, DType dtype, const Extents& e, const AttributeMap& attributes,
                  const std::optional<CaseOperand>& mask = std::nullopt, const std::string& no_gradient = "") {
  const auto masked = [&](std::vector<CaseOperand> operands) {
    return mask ? And(std::move(operands), *mask) : std::move(operands);
  };
  OpCase forward = Case("attention", masked(Forward(dtype, e)), attributes);
  forward.no_gradient = no_gradient;
  rows.push_back(std::move(forward));
  rows.push_back(Case("attention_grad", masked(Backward(dtype, e)), attributes));
  if (mask && IsFloat(mask->type.dtype))
    rows.push_back(Case("attention_mask_grad", masked(Backward(dtype, e)), attributes));
}

// A mask of bools in which query 1 sees no key.
Tensor BlindQuery() {
  return Tensor::Of<bool>({3, 4}, {true, false, true, true, false, false, false, false, true, true, true, false});
}

Tensor BlindQueryByInfinity(DType dtype) {
  const double far = -std::numeric_limits<double>::infinity();
  return Tensor::Of<double>({2, 3, 4}, {0, far, 1, 2, far, far, far, far, 0, 0, far, 1,  //
                                        0, 1,   1, 2, 1,   0,   far, 0,   0, 0, far, 1})
      .Converted(dtype);
}

void AppendAcceptedAttention(std::vector<OpCase>& rows) {
  const Extents plain = {{6}, {6}, 2, 2, 2, 2}, heads = {{2, 6}, {2, 6}, 2, 6, 3, 2},
                groups = {{2, 12}, {2, 6}, 2, 3, 2, 2};
  AddAttention(rows, DType::kF64, plain, Scaled());
  AddAttention(rows, DType::kF32, heads, Scaled());
  AddAttention(rows, DType::kF32, groups, Scaled(true));
  AddAttention(rows, DType::kF64, {{}, {}, 6, 12, 3, 6}, Scaled());
  AddAttention(rows, DType::kF32, {{3}, {1}, 4, 6, 3, 2}, Scaled(true, 2));
  AddAttention(rows, DType::kF32, {{3}, {1}, 6, 4, 3, 2}, Scaled(true, -2), std::nullopt, "as the others");
  AddAttention(rows, DType::kF64, {{2}, {2}, 4, 6, 3, 2}, Scaled(true, 0, 1.5));
  // Masks of bools and of floats, for all heads and for each.
  AddAttention(rows, DType::kF32, {{2, 6}, {2, 2}, 2, 4, 2, 2}, Scaled(), Bool({2, 1, 1, 4}));
  AddAttention(rows, DType::kF64, {{2, 6}, {2, 2}, 2, 4, 2, 2}, Scaled(), F64({1, 6, 2, 4}));
  AddAttention(rows, DType::kF64, {{6}, {6}, 2, 4, 2, 2}, Scaled(false, 0, 2), F64({6, 2, 4}));
  AddAttention(rows, DType::kF32, {{6}, {6}, 3, 4, 2, 2}, Scaled(true), F32({6, 1, 4}));
  AddAttention(rows, DType::kF32, {{6}, {3}, 3, 4, 2, 2}, Scaled(), F32({1, 1, 4}));
  AddAttention(rows, DType::kF32, {{}, {}, 3, 4, 2, 2}, Scaled(), BlindQuery());
  rows.push_back(
      Case("attention", And(Forward(DType::kF32, {{2}, {2}, 3, 4, 2, 2}), BlindQueryByInfinity(DType::kF32)), Scaled())
          .NoGradient("minus infinity"));
  rows.push_back(Case("attention_grad",
                      And(Backward(DType::kF32, {{2}, {2}, 3, 4, 2, 2}), BlindQueryByInfinity(DType::kF32)), Scaled()));
  for (DType dtype : {DType::kBF16, DType::kF16}) {
    AddAttention(rows, dtype, {{2}, {1}, 3, 4, 2, 2}, Scaled(true));
    AddAttention(rows, dtype, {{2}, {2}, 3, 4, 2, 3}, Scaled(), Typed(dtype, {1, 3, 4}));
  }
  // Rows with more than one block of queries and of keys, and for several threads.
  std::vector<OpCase> large;
  AddAttention(large, DType::kF32, {{1, 2}, {1, 1}, 70, 140, 2, 3}, Scaled());
  AddAttention(large, DType::kF32, {{1}, {1}, 140, 140, 3, 2}, Scaled(true));
  AddAttention(large, DType::kF32, {{1}, {1}, 70, 140, 2, 2}, Scaled(), F32({1, 70, 140}));
  AddAttention(large, DType::kF32, {{1, 2}, {1, 2}, 70, 140, 2, 2}, Scaled(true, 70), Bool({1, 2, 1, 140}));
  // The first query of a block sees one block of keys, the last query sees two.
  AddAttention(large, DType::kF32, {{1}, {1}, 140, 140, 2, 2}, Scaled(true, 20), F32({1, 140, 140}));
  AddAttention(large, DType::kF64, {{1}, {1}, 70, 140, 2, 2}, Scaled(true, 30, 3), F64({1, 1, 140}));
  for (OpCase& row : large) {
    if (row.op == "attention") row.no_gradient = "large, and as the others";
    rows.push_back(std::move(row).Large());
  }
  // Rows without elements.
  for (const Extents& e :
       {Extents{{0}, {0}, 2, 3, 2, 2}, Extents{{2, 0}, {2, 0}, 2, 3, 2, 2}, Extents{{2}, {2}, 0, 3, 2, 2},
        Extents{{2}, {2}, 2, 0, 2, 2}, Extents{{2}, {2}, 2, 3, 0, 2}, Extents{{2}, {2}, 2, 3, 2, 0}})
    AddAttention(rows, DType::kF32, e, Scaled(), std::nullopt, "no elements");
  AddAttention(rows, DType::kF32, {{2}, {2}, 2, 0, 2, 2}, Scaled(), F32({1, 2, 0}), "no elements");
}

using Change = void (*)(std::vector<CaseOperand>&);

// Adds a negative row for each of the three ops. q is [2, 4, 3, 5], k [2, 2, 6, 5] and v [2, 2, 6, 7].
void AddRefusedAttention(std::vector<OpCase>& rows, const char* constraint, Change change,
                         const AttributeMap& attributes = Scaled()) {
  const Extents e = {{2, 4}, {2, 2}, 3, 6, 5, 7};
  const CaseOperand mask = F32({2, 1, 3, 6});
  std::vector<CaseOperand> forward = And(Forward(DType::kF32, e), mask), backward = And(Backward(DType::kF32, e), mask);
  change(forward);
  change(backward);
  rows.push_back(Case("attention", forward, attributes).Refused(constraint));
  rows.push_back(Case("attention_grad", backward, attributes).Refused(constraint));
  rows.push_back(Case("attention_mask_grad", backward, attributes).Refused(constraint));
}

void AppendRefusedAttention(std::vector<OpCase>& rows) {
  using Operands = std::vector<CaseOperand>;
  AddRefusedAttention(rows, "C1", [](Operands& o) { o[1].type.dtype = DType::kF64; });
  AddRefusedAttention(rows, "C1", [](Operands& o) {
    for (size_t i : {0, 1, 2}) o[i].type.dtype = DType::kI32;
  });
  AddRefusedAttention(rows, "C2", [](Operands& o) { o[1].type.shape = {2, 6, 5}; });
  AddRefusedAttention(rows, "C2", [](Operands& o) {
    for (size_t i : {0, 1, 2}) o[i].type.shape = {5};
  });
  AddRefusedAttention(rows, "C3", [](Operands& o) { o[0].type.shape = {3, 4, 3, 5}; });
  AddRefusedAttention(rows, "C3", [](Operands& o) { o[0].type.shape = {2, 3, 3, 5}; });
  AddRefusedAttention(rows, "C3", [](Operands& o) { o[0].type.shape = {2, 0, 3, 5}; });
  AddRefusedAttention(rows, "C3", [](Operands& o) { o[2].type.shape = {2, 4, 6, 7}; });
  AddRefusedAttention(rows, "C3", [](Operands& o) {
    for (size_t i : {1, 2}) o[i].type.shape = {2, 0, 6, 5};
  });
  AddRefusedAttention(rows, "C4", [](Operands& o) { o[1].type.shape = {2, 2, 6, 4}; });
  AddRefusedAttention(rows, "C4", [](Operands& o) { o[2].type.shape = {2, 2, 5, 7}; });
  AddRefusedAttention(rows, "C5", [](Operands& o) { o.back().type.dtype = DType::kF64; });
  AddRefusedAttention(rows, "C5", [](Operands& o) { o.push_back(o.back()); });
  for (const Shape& mask : {Shape{3, 6}, Shape{2, 2, 3, 6}, Shape{2, 1, 3, 1}, Shape{2, 1, 2, 6}}) {
    std::vector<OpCase> all;
    AddRefusedAttention(all, "C6", [](Operands&) {});
    for (OpCase& row : all) row.operands.back().type.shape = mask;
    rows.insert(rows.end(), all.begin(), all.end());
  }
  AddRefusedAttention(rows, "C7", [](Operands&) {}, {{"scale", std::nan("")}});
  AddRefusedAttention(rows, "C7", [](Operands&) {}, Scaled(true, int64_t{1} << 41));
  AddRefusedAttention(rows, "range", [](Operands&) {}, Scaled(false, 0, -1.0));
  for (const char* op : {"attention_grad", "attention_mask_grad"}) {
    for (size_t i : {3, 4, 5}) {
      std::vector<CaseOperand> operands = And(Backward(DType::kBF16, {{2}, {2}, 3, 6, 5, 7}), BF16({1, 1, 6}));
      operands[i].type.dtype = i == 4 ? DType::kF32 : DType::kBF16;
      rows.push_back(Case(op, operands, Scaled()).Refused("C8"));
    }
  }
  const std::vector<CaseOperand> operands = Backward(DType::kF32, {{2}, {2}, 3, 6, 5, 7});
  rows.push_back(Case("attention_mask_grad", operands, Scaled()).Refused("C9"));
  rows.push_back(Case("attention_mask_grad", And(operands, Bool({1, 1, 6})), Scaled()).Refused("C9"));
}

}  // namespace

std::vector<OpCase> AttentionCases() {
  std::vector<OpCase> rows;
  AppendAcceptedAttention(rows);
  AppendRefusedAttention(rows);
  return rows;
}

}  // namespace lockstep
