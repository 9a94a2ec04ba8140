// Rules about ops that move data: reshape, transpose, slice, pad, concat.

#include <algorithm>

#include "core/ops/op_list.h"
#include "passes/simplify/constants.h"
#include "passes/simplify/letters.h"
#include "passes/simplify/rule.h"

namespace lockstep::passes {
namespace {

using enum Numbers;

Condition IsSorted(AnyAttr<Ints> list) {
  return [list](const Match& m) { return std::is_sorted(m[list].begin(), m[list].end()); };
}

Condition AreZero(AnyAttr<Ints> list, AnyAttr<Ints> other) {
  return [=](const Match& m) {
    const auto is_zero = [](int64_t element) { return element == 0; };
    return std::all_of(m[list].begin(), m[list].end(), is_zero) &&
           std::all_of(m[other].begin(), m[other].end(), is_zero);
  };
}

// concat(x, empty, y) ==> concat(x, y)
Value ConcatEmpty(Node& node, Builder& b) {
  const int64_t dim = node.attr<int64_t>("dim");
  std::vector<Value> kept;
  for (Value operand : node.operands()) {
    if (operand.shape()[dim] > 0) kept.push_back(operand);
  }
  if (kept.empty() || kept.size() == node.operands().size()) return Value();
  return b.Concat(std::move(kept), dim);
}

// concat(concat(x, y), z) along one dimension ==> concat(x, y, z)
Value ConcatConcat(Node& node, Builder& b) {
  std::vector<Value> flat;
  for (Value operand : node.operands()) {
    Node* inner = MadeBy(operand, ConcatOp());
    if (inner && inner->attr<int64_t>("dim") == node.attr<int64_t>("dim") && HasOneUse(b.graph(), operand)) {
      flat.insert(flat.end(), inner->operands().begin(), inner->operands().end());
    } else {
      flat.push_back(operand);
    }
  }
  return flat.size() > node.operands().size() ? b.Concat(std::move(flat), node.attr<int64_t>("dim")) : Value();
}

// slice(concat(x, y)) ==> slice(y), if all elements are of y
Value SliceOfConcat(Node& node, Builder& b) {
  Node* concat = MadeBy(node.operand(0), ConcatOp());
  if (!concat || node.type(0).num_elements() == 0) return Value();
  const auto dim = static_cast<size_t>(concat->attr<int64_t>("dim"));
  Ints start = node.attr<Ints>("start"), limit = node.attr<Ints>("limit");
  const Ints& stride = node.attr<Ints>("stride");
  limit[dim] = start[dim] + (node.type(0).shape.dims()[dim] - 1) * stride[dim] + 1;  // after the last element
  for (Value operand : concat->operands()) {
    const int64_t extent = operand.shape().dims()[dim];
    if (start[dim] < extent) return limit[dim] <= extent ? b.Slice(operand, start, limit, stride) : Value();
    start[dim] -= extent;
    limit[dim] -= extent;
  }
  return Value();
}

}  // namespace

std::vector<SimplifyRule> ShapeRules() {
  return {
      {"reshape_identity", kAll, Reshape(x), x, SameShape(x)},
      {"reshape_reshape", kAll, Reshape(Reshape(x)), Reshape(x), GlobalTypes()},

      {"transpose_identity", kAll, Transpose(x, p), x, IsSorted(p)},
      {"transpose_transpose", kAll, Transpose(Transpose(x, p), q), Transpose(x, p[q])},

      {"slice_identity", kAll, Slice(x, p, q), x, SameShape(x)},
      {"slice_slice", kAll, Slice(Slice(x, p, q), r, s), Slice(x, p + q * r, q * s)},
      {"slice_of_concat", SliceOp(), SliceOfConcat},

      {"pad_identity", kAll, Pad(x, p, q, value), x, AreZero(p, q)},
      {"pad_pad", kAll, Pad(Pad(x, p, q, value), r, s, value), Pad(x, p + r, q + s, value)},

      {"concat_one", kAll, Concat({x}, dim), x},
      {"concat_empty", ConcatOp(), ConcatEmpty},
      {"concat_concat", ConcatOp(), ConcatConcat},
  };
}

}  // namespace lockstep::passes
