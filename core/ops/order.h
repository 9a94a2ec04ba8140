// The order of elements for argmax, argmin and top_k, here and in kernels.

#pragma once

namespace lockstep::ops {

// True if a comes before b in increasing order. NaN is the largest, and all NaN are equal.
template <typename T>
bool IsLess(T a, T b) {
  return b != b ? a == a : a < b;
}

}  // namespace lockstep::ops
