// How much tests do that try many cases of one kind.

#pragma once

#include <algorithm>
#include <cstdlib>

namespace lockstep {

// --config=asan and --config=tsan: programs take ten times as long.
inline bool UnderSanitizer() { return std::getenv("LOCKSTEP_SANITIZED") != nullptr; }

// `make test-everything`: each case that a table or a loop has.
inline bool TestsEverything() { return std::getenv("LOCKSTEP_TEST_EVERYTHING") != nullptr && !UnderSanitizer(); }

// How many of `count` cases of one kind run, one at least: all in `make test-everything`, a third in `make test`. Under
// a sanitizer a tenth: it looks at memory and threads, which cases of one kind use alike.
template <typename Int>
Int NumCases(Int count) {
  const Int share = UnderSanitizer() ? 10 : TestsEverything() ? 1 : 3;
  return std::max<Int>(count / share, 1);
}

}  // namespace lockstep
