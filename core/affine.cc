#include "core/affine.h"

namespace lockstep {

Affine Affine::Plus(const Affine& other, int64_t factor) const {
  Affine sum = *this;
  sum.constant += factor * other.constant;
  for (size_t k = 0; k < strides.size(); ++k) sum.strides[k] += factor * other.strides[k];
  return sum;
}

int64_t Affine::At(const std::vector<int64_t>& index) const {
  int64_t value = constant;
  for (size_t k = 0; k < strides.size(); ++k) value += strides[k] * index[k];
  return value;
}

Affine Affine::Index(size_t num_dims, size_t dim, int64_t stride, int64_t constant) {
  Affine index = Zero(num_dims);
  index.strides[dim] = stride;
  index.constant = constant;
  return index;
}

}  // namespace lockstep
