// The combination of two elements in a reduction over dimensions of a tensor or over ranks. For the authors of op
// blocks only.

#pragma once

#include <cmath>
#include <limits>

#include "core/dtype.h"
#include "core/placement.h"

namespace lockstep::ops {

// Combines a and b by `kind`. A mean combines as a sum; the caller divides at the end. NaN stays NaN; integers wrap
// around.
template <typename T>
T Combine(ReduceKind kind, T a, T b) {
  if constexpr (std::is_floating_point_v<T>) {
    if (kind == ReduceKind::kMin) return std::isnan(a) || a < b ? a : b;
    if (kind == ReduceKind::kMax) return std::isnan(a) || a > b ? a : b;
    return kind == ReduceKind::kProd ? a * b : a + b;
  } else {
    if (kind == ReduceKind::kMin) return a < b ? a : b;
    if (kind == ReduceKind::kMax) return a > b ? a : b;
    const uint64_t x = static_cast<uint64_t>(a), y = static_cast<uint64_t>(b);  // unsigned overflow is defined
    return static_cast<T>(kind == ReduceKind::kProd ? x * y : x + y);
  }
}

// The neutral element of `kind` for elements of type T. It is a double for all float types.
template <typename T>
auto Neutral(ReduceKind kind) {
  using A = std::conditional_t<std::is_integral_v<T>, T, double>;
  using Limits = std::numeric_limits<A>;
  switch (kind) {
    case ReduceKind::kMin: return Limits::has_infinity ? Limits::infinity() : Limits::max();
    case ReduceKind::kMax: return Limits::has_infinity ? static_cast<A>(-Limits::infinity()) : Limits::lowest();
    case ReduceKind::kProd: return A(1);
    default: return A(0);
  }
}

}  // namespace lockstep::ops
