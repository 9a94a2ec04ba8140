// Rules that remove collectives or reduce their bytes. A reduction is elementwise over ranks, so it commutes with ops
// that move, repeat or drop elements. If it is exchanged with another sum, the order of additions changes. For dtypes
// of 16 bits that exchange is not made, since terms of a sum are not rounded to 16 bits (docs/decisions/0024).

#include <algorithm>

#include "passes/simplify/letters.h"
#include "passes/simplify/rule.h"

namespace lockstep::passes {
namespace {

using enum Numbers;

constexpr AnyAttr<std::string> axis{2}, kind{3};
constexpr AnyAttr<int64_t> other{4}, root{6};
constexpr AnyAttr<DType> dtype{4};
const AttrExpr<std::string> sum(std::string("sum")), max(std::string("max")), min(std::string("min"));

// True if all ranks along the axis hold the same value; and that a reduction of this kind does not change it.
Condition AreEqual(AnyValue x, AnyAttr<std::string> axis) {
  return [=](const Match& m) { return m[x].placement(m[axis]).is_replicated(); };
}
Condition AreEqualAndStay(AnyValue x, AnyAttr<std::string> axis, AnyAttr<std::string> kind) {
  return [=, are_equal = AreEqual(x, axis)](const Match& m) {
    return are_equal(m) && (m[kind] == "max" || m[kind] == "min");
  };
}

Condition IsSmaller(AnyValue x) {
  return [x](const Match& m) { return m[x].type().num_elements() < m.node().type().num_elements(); };
}

Condition IsNarrower(AnyValue x) {
  return [x](const Match& m) { return SizeOf(m[x].dtype()) < SizeOf(m.node().type().dtype); };
}

bool HasRoomForParts(const Match& m) { return !IsFloat(m.node().type().dtype) || SizeOf(m.node().type().dtype) > 2; }

// Returns the dimension of the operand of a broadcast by `dims` that becomes `dim` of its result.
AttrExpr<int64_t> Before(AnyAttr<Ints> dims, AnyAttr<int64_t> dim) {
  return {
      [=](const Match& m) -> int64_t { return std::find(m[dims].begin(), m[dims].end(), m[dim]) - m[dims].begin(); }};
}

Condition IsSmallerAndHas(AnyValue x, AnyAttr<Ints> dims, AnyAttr<int64_t> dim) {
  return [=, is_smaller = IsSmaller(x)](const Match& m) {
    return is_smaller(m) && std::find(m[dims].begin(), m[dims].end(), m[dim]) != m[dims].end();
  };
}

// True if a slice of the gathered x has all of dimension `dim`, and x has the same extent there. In a local graph the
// types of x are those of a rank's part, so the condition does not hold.
Condition IsWholeAlong(AnyValue x, AnyValue gathered, AnyAttr<int64_t> dim) {
  return [=](const Match& m) {
    const int64_t extent = m[gathered].shape()[m[dim]];
    return m[x].shape()[m[dim]] == extent && m.node().type().shape[m[dim]] == extent;
  };
}

// Replaces a collective by an earlier equal one with the same operands.
Value Twice(Node& node, Builder& b) {
  if (node.num_results() != 1 || node.operands().empty()) return Value();
  const auto is_equal = [&](const Node* user) {
    return user != &node && &user->op() == &node.op() && user->operands() == node.operands() &&
           user->attributes() == node.attributes();
  };
  const std::vector<Node*>& users = node.operand(0).node->users();
  if (std::none_of(users.begin(), users.end(), is_equal)) return Value();
  for (Node& earlier : b.graph().nodes()) {
    if (&earlier == &node) break;
    if (is_equal(&earlier)) return earlier.result();
  }
  return Value();
}

}  // namespace

std::vector<SimplifyRule> CollectiveRules() {
  return {
      {"collective_twice", kCollective, Twice},
      // Collectives whose result exists already.
      {"all_reduce_of_equals", kAll, AllReduce(x, axis, kind), x, AreEqualAndStay(x, axis, kind)},
      {"collective_broadcast_of_equals", kAll, CollectiveBroadcast(x, axis, root), x, AreEqual(x, axis)},
      {"all_gather_of_shard", kAll, AllGather(Shard(x, axis, dim), axis, dim), x},
      {"all_to_all_and_back", kAll, AllToAll(AllToAll(x, axis, dim, other), axis, other, dim), x},
      {"scatter_of_gather", kAll, CollectiveScatter(CollectiveGather(x, axis, dim, root), axis, dim, root), x},
      // One transfer instead of two.
      {"all_gather_of_reduce_scatter", kAll, AllGather(Only(ReduceScatter(x, axis, dim, kind)), axis, dim),
       AllReduce(x, axis, kind)},
      {"sum_of_all_reduces", kAll, Only(AllReduce(x, axis, sum)) + Only(AllReduce(y, axis, sum)),
       AllReduce(x + y, axis, sum), HasRoomForParts},
      {"difference_of_all_reduces", kAll, Only(AllReduce(x, axis, sum)) - Only(AllReduce(y, axis, sum)),
       AllReduce(x - y, axis, sum), HasRoomForParts},
      // Fewer elements, or a smaller dtype.
      {"all_reduce_of_pad", kAll, AllReduce(Pad(x, p, q, 0.0), axis, sum), Pad(AllReduce(x, axis, sum), p, q, 0.0),
       IsSmaller(x)},
      {"slice_of_all_reduce", kAll, Slice(Only(AllReduce(x, axis, kind)), p, q), AllReduce(Slice(x, p, q), axis, kind)},
      {"reduce_sum_of_all_reduce", kAll, ReduceSum(Only(AllReduce(x, axis, sum)), p),
       AllReduce(ReduceSum(x, p), axis, sum), HasRoomForParts},
      {"reduce_max_of_all_reduce", kAll, ReduceMax(Only(AllReduce(x, axis, max)), p),
       AllReduce(ReduceMax(x, p), axis, max)},
      {"reduce_min_of_all_reduce", kAll, ReduceMin(Only(AllReduce(x, axis, min)), p),
       AllReduce(ReduceMin(x, p), axis, min)},
      {"all_gather_of_broadcast", kAll, AllGather(Broadcast(x, p), axis, dim),
       Broadcast(AllGather(x, axis, Before(p, dim)), p), IsSmallerAndHas(x, p, dim)},
      {"all_gather_of_convert", kAll, AllGather(Convert(x, dtype), axis, dim), Convert(AllGather(x, axis, dim), dtype),
       IsNarrower(x)},
      {"slice_of_all_gather", kAll, Slice(As(y, Only(AllGather(x, axis, dim))), p, q),
       AllGather(Slice(x, p, q), axis, dim), IsWholeAlong(x, y, dim)},
  };
}

}  // namespace lockstep::passes
