// The number of cases that a test runs, if it has many of one kind.

#pragma once

#include <algorithm>
#include <cstdlib>

namespace lockstep {

// True with --config=asan and --config=tsan, where programs take ten times as long.
inline bool UnderSanitizer() { return std::getenv("LOCKSTEP_SANITIZED") != nullptr; }

// True in `make test-everything`, which runs each case of a table or a loop.
inline bool TestsEverything() { return std::getenv("LOCKSTEP_TEST_EVERYTHING") != nullptr && !UnderSanitizer(); }

// The number of cases to run of `count` cases of one kind, at least one: all in `make test-everything`, a third in
// `make test`, a tenth under a sanitizer, which checks memory and threads, and cases of one kind use these alike.
template <typename Int>
Int NumCases(Int count) {
  const Int share = UnderSanitizer() ? 10 : TestsEverything() ? 1 : 3;
  return std::max<Int>(count / share, 1);
}

}  // namespace lockstep
