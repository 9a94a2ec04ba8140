#include "passes/training/cut_batches.h"

#include <numeric>
#include <vector>

namespace lockstep::passes {
namespace {

using Ints = std::vector<int64_t>;

// Returns `dims` with the entry at `dim` replaced by those of `by`.
Ints Replaced(Ints dims, int64_t dim, const Ints& by) {
  const auto at = dims.erase(dims.begin() + dim);
  dims.insert(at, by.begin(), by.end());
  return dims;
}

}  // namespace

Value BatchCut::Cut(Builder& b, Value x, int64_t dim) const {
  if (!x) return Value();
  const Ints& dims = x.shape().dims();
  const int64_t extent = x.shape()[dim], each = granules / micro_batches;
  const Value in_granules = b.Reshape(x, Shape(Replaced(dims, dim, {each, micro_batches, extent / granules})));
  Ints permutation(dims.size() + 2);
  std::iota(permutation.begin(), permutation.end(), 0);
  permutation.erase(permutation.begin() + dim + 1);
  permutation.insert(permutation.begin(), dim + 1);
  Ints cut = Replaced(dims, dim, {extent / micro_batches});
  cut.insert(cut.begin(), micro_batches);
  return b.Reshape(b.Transpose(in_granules, std::move(permutation)), Shape(std::move(cut)));
}

Value BatchCut::Join(Builder& b, Value cut, int64_t dim) const {
  if (!cut) return Value();
  const Ints dims(cut.shape().dims().begin() + 1, cut.shape().dims().end());
  const int64_t extent = cut.shape()[dim + 1] * micro_batches, each = granules / micro_batches;
  Ints in_granules = Replaced(dims, dim, {each, extent / granules});
  in_granules.insert(in_granules.begin(), micro_batches);
  Ints permutation(in_granules.size());
  std::iota(permutation.begin(), permutation.end(), 0);
  permutation.erase(permutation.begin());
  permutation.insert(permutation.begin() + dim + 1, 0);
  const Value whole = b.Transpose(b.Reshape(cut, Shape(std::move(in_granules))), std::move(permutation));
  return b.Reshape(whole, Shape(Replaced(dims, dim, {extent})));
}

}  // namespace lockstep::passes
