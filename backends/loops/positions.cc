#include "backends/loops/positions.h"

#include <algorithm>

namespace lockstep {
namespace {

// A loop over an empty dimension never runs; an extent of 1 keeps the arithmetic defined.
int64_t Extent(const Shape& shape, size_t dim) { return std::max<int64_t>(shape.dims()[dim], 1); }

}  // namespace

std::vector<int64_t> StridesOf(const Shape& shape) {
  std::vector<int64_t> strides(shape.dims().size(), 1);
  for (size_t j = strides.size(); j-- > 1;) strides[j - 1] = strides[j] * Extent(shape, j);
  return strides;
}

std::variant<std::vector<Affine>, SplitDim, NotAffine> IndicesOf(const Affine& position, const Shape& shape,
                                                                 const std::vector<int64_t>& extents) {
  const std::vector<int64_t> strides = StridesOf(shape);
  const size_t rank = strides.size();
  // Indices along a negative stride are counted from the other end: index k is extents[k] - 1 minus the index from
  // there.
  Affine upwards = position;
  for (size_t k = 0; k < extents.size(); ++k) {
    if (position.strides[k] >= 0 || extents[k] <= 1) continue;
    upwards.constant += position.strides[k] * (extents[k] - 1);
    upwards.strides[k] = -position.strides[k];
  }
  std::vector<Affine> indices(rank, Affine::Zero(extents.size()));
  std::vector<int64_t> largest(rank, 0);
  for (size_t j = 0; j < rank; ++j) {
    indices[j].constant = largest[j] = upwards.constant / strides[j] % Extent(shape, j);
  }
  for (size_t k = 0; k < extents.size(); ++k) {
    const int64_t stride = upwards.strides[k];
    if (stride == 0 || extents[k] <= 1) continue;
    // The dimension with the largest stride that is not above this one.
    size_t j = 0;
    while (j < rank && (strides[j] > stride || Extent(shape, j) == 1)) ++j;
    if (j == rank || stride % strides[j] != 0) return NotAffine();
    const int64_t whole = strides[j] * Extent(shape, j);
    if (stride >= whole) return NotAffine();
    if (stride * (extents[k] - 1) >= whole) {  // the loop dimension covers several dimensions of the shape
      if (whole % stride != 0 || extents[k] % (whole / stride) != 0) return NotAffine();
      return SplitDim{k, whole / stride};
    }
    indices[j].strides[k] = stride / strides[j];
    largest[j] += indices[j].strides[k] * (extents[k] - 1);
  }
  for (size_t j = 0; j < rank; ++j) {
    if (largest[j] >= Extent(shape, j)) return NotAffine();  // would carry into the next dimension
  }
  for (size_t k = 0; k < extents.size(); ++k) {
    if (position.strides[k] >= 0 || extents[k] <= 1) continue;
    for (Affine& index : indices) {
      index.constant += index.strides[k] * (extents[k] - 1);
      index.strides[k] = -index.strides[k];
    }
  }
  return indices;
}

}  // namespace lockstep
