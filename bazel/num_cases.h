// How much tests do that try many cases of one kind.

#pragma once

#include <algorithm>
#include <cstdlib>

namespace lockstep {

// --config=asan and --config=tsan: programs take ten times as long.
inline bool UnderSanitizer() { return std::getenv("LOCKSTEP_SANITIZED") != nullptr; }

// `count`; under a sanitizer a tenth, and one at least: it looks at memory and threads, which cases of one kind use
// alike.
template <typename Int>
Int NumCases(Int count) {
  return UnderSanitizer() ? std::max<Int>(count / 10, 1) : count;
}

}  // namespace lockstep
