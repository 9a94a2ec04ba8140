// Rules about reductions and matrix products.

#include <algorithm>

#include "passes/simplify/letters.h"
#include "passes/simplify/rule.h"

namespace lockstep::passes {
namespace {

using enum Numbers;

constexpr AnyAttr<bool> left{2}, right{3}, wide{4};

bool Contains(const Ints& list, int64_t value) { return std::find(list.begin(), list.end(), value) != list.end(); }

Condition IsEmpty(AnyAttr<Ints> list) {
  return [list](const Match& m) { return m[list].empty(); };
}

Condition HaveExtentOne(AnyValue x, AnyAttr<Ints> dims) {
  return [=](const Match& m) {
    return std::all_of(m[dims].begin(), m[dims].end(), [&](int64_t dim) { return m[x].shape()[dim] == 1; });
  };
}

// Returns the dimensions that a reduction over `inner` and then one over `outer`, in the remaining dimensions, remove.
IntsExpr OneAfterTheOther(AnyAttr<Ints> inner, AnyAttr<Ints> outer) {
  return {[=](const Match& m) {
    Ints gone = m[inner];
    int64_t left = 0;  // the index of `dim` among the dimensions that the inner reduction leaves
    const int64_t rank = static_cast<int64_t>(m[inner].size()) + (m[outer].empty() ? 0 : m[outer].back() + 1);
    for (int64_t dim = 0; dim < rank; ++dim) {
      if (Contains(m[inner], dim)) continue;
      if (Contains(m[outer], left++)) gone.push_back(dim);
    }
    std::sort(gone.begin(), gone.end());
    return gone;
  }};
}

// Returns how often each element occurs in a reduction over `reduced` of a broadcast by `dims`.
double NumRepeats(const Match& m, AnyAttr<Ints> dims, AnyAttr<Ints> reduced) {
  double count = 1;
  for (int64_t dim : m[reduced]) {
    if (!Contains(m[dims], dim)) count *= static_cast<double>(m.node().operand(0).shape()[dim]);
  }
  return count;
}

Expr Repeats(AnyAttr<Ints> dims, AnyAttr<Ints> reduced) {
  return Computed([=](const Match& m) { return NumRepeats(m, dims, reduced); });
}

// True if a reduced dimension repeats x, and not zero times.
Condition Repeat(AnyAttr<Ints> dims, AnyAttr<Ints> reduced) {
  return [=](const Match& m) {
    return NumRepeats(m, dims, reduced) != 0 &&
           std::any_of(m[reduced].begin(), m[reduced].end(), [&](int64_t dim) { return !Contains(m[dims], dim); });
  };
}

// The same, and the dtype can represent the number of repeats.
Condition RepeatCountably(AnyAttr<Ints> dims, AnyAttr<Ints> reduced) {
  return [=, repeat = Repeat(dims, reduced)](const Match& m) {
    const double count = NumRepeats(m, dims, reduced);
    return repeat(m) && Tensor::Scalar(m.node().type().dtype, count).At(0) == count;
  };
}

// Returns the dimensions of the operand of a broadcast by `dims` that are reduced.
IntsExpr ReducedBelow(AnyAttr<Ints> dims, AnyAttr<Ints> reduced) {
  return {[=](const Match& m) {
    Ints result;
    for (size_t i = 0; i < m[dims].size(); ++i) {
      if (Contains(m[reduced], m[dims][i])) result.push_back(static_cast<int64_t>(i));
    }
    return result;
  }};
}

// Returns `dims` without the reduced dimensions, renumbered for the shape after the reduction.
IntsExpr Without(AnyAttr<Ints> dims, AnyAttr<Ints> reduced) {
  return {[=](const Match& m) {
    Ints result;
    for (int64_t dim : m[dims]) {
      if (Contains(m[reduced], dim)) continue;
      result.push_back(dim -
                       std::count_if(m[reduced].begin(), m[reduced].end(), [&](int64_t other) { return other < dim; }));
    }
    return result;
  }};
}

Condition SwapsLastTwo(AnyAttr<Ints> permutation) {
  return [permutation](const Match& m) {
    Ints swapped = m[permutation];
    if (swapped.size() < 2) return false;
    std::swap(swapped[swapped.size() - 1], swapped[swapped.size() - 2]);
    return std::is_sorted(swapped.begin(), swapped.end());
  };
}

// The same, and x and y have equal rank. An operand x with rows of several dimensions cannot be transposed.
Condition SwapsLastTwoOfBoth(AnyAttr<Ints> permutation, AnyValue x, AnyValue y) {
  return [swaps = SwapsLastTwo(permutation), x, y](const Match& m) {
    return swaps(m) && m[x].shape().rank() == m[y].shape().rank();
  };
}

}  // namespace

std::vector<SimplifyRule> ReductionRules() {
  std::vector<SimplifyRule> rules = {
      {"reduce_sum_of_broadcast", kAll, ReduceSum(Broadcast(x, p), q),
       Broadcast(ReduceSum(x, ReducedBelow(p, q)) * Repeats(p, q), Without(p, q)), GlobalTypes(),
       RepeatCountably(p, q)},
      {"reduce_max_of_broadcast", kAll, ReduceMax(Broadcast(x, p), q),
       Broadcast(ReduceMax(x, ReducedBelow(p, q)), Without(p, q)), GlobalTypes(), Repeat(p, q)},
      {"reduce_min_of_broadcast", kAll, ReduceMin(Broadcast(x, p), q),
       Broadcast(ReduceMin(x, ReducedBelow(p, q)), Without(p, q)), GlobalTypes(), Repeat(p, q)},

      {"matmul_of_transpose", kAll, MatMul(Transpose(x, p), y, left, right, wide), MatMul(x, y, !left, right, wide),
       SwapsLastTwoOfBoth(p, x, y)},
      {"matmul_by_transpose", kAll, MatMul(x, Transpose(y, p), left, right, wide), MatMul(x, y, left, !right, wide),
       SwapsLastTwo(p)},
      {"transpose_of_matmul", kAll, Transpose(Only(MatMul(x, y, left, right, wide)), p),
       MatMul(y, x, !right, !left, wide), SwapsLastTwoOfBoth(p, x, y)},
      {"transpose_of_sum_of_matmuls", kAll, Transpose(Only(SumOfMatMuls(x, y, wide)), p), SumOfMatMuls(y, x, wide),
       SwapsLastTwo(p)},
  };
  for (const OpDef* op : AllOps()) {
    if (!op->reduction()) continue;
    const std::string& name = op->name();
    const auto reduce = [op](Expr x, AttrExpr<Ints> dims) { return Reduce(*op, std::move(x), std::move(dims)); };
    rules.push_back({name + "_nothing", kAll, reduce(x, p), x, IsEmpty(p)});
    rules.push_back({name + "_unit_dims", kAll, reduce(x, p), Reshape(x), GlobalTypes(), HaveExtentOne(x, p)});
    rules.push_back({name + "_" + name, kAll, reduce(Only(reduce(x, p)), q), reduce(x, OneAfterTheOther(p, q))});
  }
  return rules;
}

}  // namespace lockstep::passes
