// Counts NaNs and infinities in the elements of a tensor. Any thread.

#pragma once

#include <cstddef>
#include <cstdint>
#include <string>
#include <vector>

#include "core/dtype.h"

namespace lockstep {

// What the elements of a value are like.
struct ElementCounts {
  int64_t elements = 0, nans = 0, infinities = 0;
  int64_t first = -1;          // the position of the first NaN or, if there is none, infinity; -1: all are finite
  double least = 0, most = 0;  // of the finite elements; 0 if there are none

  bool is_finite() const { return nans == 0 && infinities == 0; }
  // Returns "-1.5 to 2.0", or "3 NaN and 1 infinite of 128, the others -1.5 to 2.0", or with `index`, that of the
  // first, "3 NaN and 1 infinite of 128, first at [5, 0], the others -1.5 to 2.0".
  std::string ToString(const std::vector<int64_t>& index = {}) const;
};

// Returns the counts of `bytes` bytes of elements. An integer is always finite, and its range is not computed.
ElementCounts CountElements(DType dtype, const std::byte* data, size_t bytes);

// Returns by element whether it is NaN or infinite. Not for integers.
std::vector<bool> NonFiniteElements(DType dtype, const std::byte* data, size_t bytes);

// Returns whether no element is NaN or infinite, at about the speed of memory.
bool AllFinite(DType dtype, const std::byte* data, size_t bytes);

}  // namespace lockstep
