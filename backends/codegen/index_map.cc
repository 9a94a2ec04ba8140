#include "backends/codegen/index_map.h"

#include <algorithm>

namespace lockstep {
namespace {

// A loop over an empty dimension never runs; taking its extent for 1 keeps the arithmetic defined.
int64_t Extent(const Shape& shape, size_t dim) { return std::max<int64_t>(shape.dims()[dim], 1); }

}  // namespace

std::vector<int64_t> StridesOf(const Shape& shape) {
  std::vector<int64_t> strides(shape.dims().size(), 1);
  for (size_t j = strides.size(); j-- > 1;) strides[j - 1] = strides[j] * Extent(shape, j);
  return strides;
}

Affine Affine::Plus(const Affine& other, int64_t factor) const {
  Affine sum = *this;
  sum.constant += factor * other.constant;
  for (size_t k = 0; k < strides.size(); ++k) sum.strides[k] += factor * other.strides[k];
  return sum;
}

std::variant<std::vector<Affine>, SplitDim, NotAffine> IndicesOf(const Affine& position, const Shape& shape,
                                                                 const std::vector<int64_t>& extents) {
  const std::vector<int64_t> strides = StridesOf(shape);
  const size_t rank = strides.size();
  std::vector<Affine> indices(rank, Affine::Zero(extents.size()));
  std::vector<int64_t> largest(rank, 0);
  for (size_t j = 0; j < rank; ++j) {
    indices[j].constant = largest[j] = position.constant / strides[j] % Extent(shape, j);
  }
  for (size_t k = 0; k < extents.size(); ++k) {
    const int64_t stride = position.strides[k];
    if (stride == 0 || extents[k] <= 1) continue;
    // The dimension whose steps are the largest that are not above this one's.
    size_t j = 0;
    while (j < rank && (strides[j] > stride || Extent(shape, j) == 1)) ++j;
    if (stride < 0 || j == rank || stride % strides[j] != 0) return NotAffine();
    const int64_t whole = strides[j] * Extent(shape, j);
    if (stride >= whole) return NotAffine();
    if (stride * (extents[k] - 1) >= whole) {  // the loop dimension runs over several of the shape's
      if (whole % stride != 0 || extents[k] % (whole / stride) != 0) return NotAffine();
      return SplitDim{k, whole / stride};
    }
    indices[j].strides[k] = stride / strides[j];
    largest[j] += indices[j].strides[k] * (extents[k] - 1);
  }
  for (size_t j = 0; j < rank; ++j) {
    if (largest[j] >= Extent(shape, j)) return NotAffine();  // a carry into the next dimension
  }
  return indices;
}

}  // namespace lockstep
