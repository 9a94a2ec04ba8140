// The letters of rules that several families use. A family defines its own letters in slots of Match that are free
// here, or in used slots if no rule has both letters.

#pragma once

#include "passes/simplify/notation.h"

namespace lockstep::passes {

inline constexpr AnyValue x{0}, y{1}, z{2};
inline constexpr AnySplat c0{0}, c1{1};
inline constexpr AnyAttr<Ints> p{0}, q{1}, r{2}, s{3};
inline constexpr AnyAttr<double> value{4};
inline constexpr AnyAttr<int64_t> dim{5};

}  // namespace lockstep::passes
