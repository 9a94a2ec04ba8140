// Static shapes and tensor types. Plain values; any thread.

#pragma once

#include <cstddef>
#include <cstdint>
#include <initializer_list>
#include <ostream>
#include <string>
#include <vector>

#include "core/dtype.h"

namespace lockstep {

// Converts a dimension, an extent or a position to an index of a vector. Requires i >= 0.
inline size_t At(int64_t i) { return static_cast<size_t>(i); }

// The extents of a tensor, outermost first; the empty shape is a scalar. Every extent is at least 0.
class Shape {
 public:
  Shape() = default;
  Shape(std::initializer_list<int64_t> dims) : dims_(dims) {}
  explicit Shape(std::vector<int64_t> dims) : dims_(std::move(dims)) {}

  int64_t rank() const { return static_cast<int64_t>(dims_.size()); }
  int64_t operator[](int64_t dim) const { return dims_[static_cast<size_t>(dim)]; }
  const std::vector<int64_t>& dims() const { return dims_; }
  int64_t num_elements() const;
  bool has_dim(int64_t dim) const { return dim >= 0 && dim < rank(); }

  // This shape with dimension `dim` set to `extent`. Requires has_dim(dim).
  Shape WithDim(int64_t dim, int64_t extent) const;
  // This shape without the given dimensions.
  Shape Without(const std::vector<int64_t>& dims) const;

  // True if slices along `dim` are contiguous in row-major order.
  bool IsOutermost(int64_t dim) const;

  // Row-major strides in elements.
  std::vector<int64_t> Strides() const;

  bool operator==(const Shape&) const = default;
  std::string ToString() const;  // "[2,3]", "[]"

 private:
  std::vector<int64_t> dims_;
};

struct TensorType {
  DType dtype = DType::kF32;
  Shape shape;

  int64_t num_elements() const { return shape.num_elements(); }
  size_t num_bytes() const { return static_cast<size_t>(num_elements()) * SizeOf(dtype); }
  bool operator==(const TensorType&) const = default;
  std::string ToString() const;  // "f32[2,3]"
};

// True if a tensor of this type has at most 2^47 bytes, with empty dimensions counted as 1, so that no product of its
// extents overflows.
bool IsAddressable(const TensorType& type);

std::ostream& operator<<(std::ostream& out, const Shape& shape);
std::ostream& operator<<(std::ostream& out, const TensorType& type);

// Returns the index of the element at a position in row-major order; nothing for a scalar, or if `position` is
// negative.
std::vector<int64_t> IndexOf(int64_t position, const Shape& shape);

// "[1, 2, 3]"
std::string ListToString(const std::vector<int64_t>& list);

}  // namespace lockstep
