// LOCKSTEP_CHECK ends the process with a message when an invariant of our own code is broken. User input never reaches
// it: errors that a user, a file or another rank can cause are absl::Status. Any thread may call it.

#pragma once

#include <cstdio>
#include <cstdlib>
#include <sstream>

namespace lockstep::internal {

class CheckFailure {
 public:
  CheckFailure(const char* file, int line, const char* condition) {
    message_ << file << ":" << line << ": CHECK failed: " << condition << " ";
  }
  [[noreturn]] ~CheckFailure() {
    std::fprintf(stderr, "%s\n", message_.str().c_str());
    std::abort();
  }
  std::ostream& stream() { return message_; }

 private:
  std::ostringstream message_;
};

}  // namespace lockstep::internal

#define LOCKSTEP_CHECK(condition)   \
  while (!(condition)) [[unlikely]] \
  ::lockstep::internal::CheckFailure(__FILE__, __LINE__, #condition).stream()
