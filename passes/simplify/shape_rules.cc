// Rules about ops that move data: reshape, transpose, slice, pad, concat.

#include <algorithm>

#include "core/op_def.h"
#include "passes/simplify/rule.h"

namespace lockstep::passes {
namespace {

using Ints = std::vector<int64_t>;

bool AllAre(const Ints& list, int64_t value) {
  return std::all_of(list.begin(), list.end(), [&](int64_t element) { return element == value; });
}

Ints Sum(Ints a, const Ints& b) {
  for (size_t i = 0; i < a.size(); ++i) a[i] += b[i];
  return a;
}

// reshape(x) to its own shape ==> x
Value ReshapeIdentity(Node& node, Builder&) {
  return node.operand(0).shape() == node.type(0).shape ? node.operand(0) : Value();
}

// reshape(reshape(x)) ==> reshape(x)
Value ReshapeReshape(Node& node, Builder& b) {
  Node* inner = MadeBy(node.operand(0), "reshape");
  return inner ? b.Reshape(inner->operand(0), node.type(0).shape) : Value();
}

// transpose by [0, 1, 2] ==> x
Value TransposeIdentity(Node& node, Builder&) {
  const Ints& permutation = node.attr<Ints>("permutation");
  return std::is_sorted(permutation.begin(), permutation.end()) ? node.operand(0) : Value();
}

// transpose(transpose(x)) ==> transpose(x)
Value TransposeTranspose(Node& node, Builder& b) {
  Node* inner = MadeBy(node.operand(0), "transpose");
  if (!inner) return Value();
  Ints permutation;
  for (int64_t dim : node.attr<Ints>("permutation")) {
    permutation.push_back(inner->attr<Ints>("permutation")[static_cast<size_t>(dim)]);
  }
  return b.Transpose(inner->operand(0), permutation);
}

// slice of everything ==> x
Value SliceIdentity(Node& node, Builder&) {
  return node.operand(0).shape() == node.type(0).shape ? node.operand(0) : Value();
}

// slice(slice(x)) ==> slice(x)
Value SliceSlice(Node& node, Builder& b) {
  Node* inner = MadeBy(node.operand(0), "slice");
  if (!inner) return Value();
  Ints start, limit, stride;
  for (size_t i = 0; i < inner->attr<Ints>("start").size(); ++i) {
    const int64_t inner_stride = inner->attr<Ints>("stride")[i];
    const int64_t extent = node.type(0).shape[static_cast<int64_t>(i)];
    stride.push_back(inner_stride * node.attr<Ints>("stride")[i]);
    // An empty slice may start behind the last element: it starts at 0 instead.
    start.push_back(extent == 0 ? 0 : inner->attr<Ints>("start")[i] + inner_stride * node.attr<Ints>("start")[i]);
    limit.push_back(extent == 0 ? 0 : start.back() + (extent - 1) * stride.back() + 1);
  }
  return b.Slice(inner->operand(0), start, limit, stride);
}

// pad by nothing ==> x
Value PadIdentity(Node& node, Builder&) {
  return AllAre(node.attr<Ints>("low"), 0) && AllAre(node.attr<Ints>("high"), 0) ? node.operand(0) : Value();
}

// pad(pad(x)) with one value ==> pad(x)
Value PadPad(Node& node, Builder& b) {
  Node* inner = MadeBy(node.operand(0), "pad");
  if (!inner || inner->attributes().at("value") != node.attributes().at("value")) return Value();
  return b.Pad(inner->operand(0), Sum(inner->attr<Ints>("low"), node.attr<Ints>("low")),
               Sum(inner->attr<Ints>("high"), node.attr<Ints>("high")), node.attr<double>("value"));
}

// concat of one ==> x
Value ConcatOne(Node& node, Builder&) { return node.operands().size() == 1 ? node.operand(0) : Value(); }

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
    Node* inner = MadeBy(operand, "concat");
    if (inner && inner->attr<int64_t>("dim") == node.attr<int64_t>("dim") && HasOneUse(b.graph(), operand)) {
      flat.insert(flat.end(), inner->operands().begin(), inner->operands().end());
    } else {
      flat.push_back(operand);
    }
  }
  return flat.size() > node.operands().size() ? b.Concat(std::move(flat), node.attr<int64_t>("dim")) : Value();
}

}  // namespace

std::vector<SimplifyRule> ShapeRules() {
  return {
      {"reshape_identity", "reshape", ReshapeIdentity},
      {"reshape_reshape", "reshape", ReshapeReshape, /*one_rank_only=*/true},
      {"transpose_identity", "transpose", TransposeIdentity},
      {"transpose_transpose", "transpose", TransposeTranspose},
      {"slice_identity", "slice", SliceIdentity},
      {"slice_slice", "slice", SliceSlice},
      {"pad_identity", "pad", PadIdentity},
      {"pad_pad", "pad", PadPad},
      {"concat_one", "concat", ConcatOne},
      {"concat_empty", "concat", ConcatEmpty},
      {"concat_concat", "concat", ConcatConcat},
  };
}

}  // namespace lockstep::passes
