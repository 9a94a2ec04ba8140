// Declarations that the cases of the conformance suite share. Only for the sources of the suite.

#pragma once

#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include "absl/time/time.h"
#include "bazel/num_cases.h"
#include "core/status.h"
#include "runtime/comm/conformance/cases.h"
#include "runtime/communicator.h"

namespace lockstep {

// Each returns a part of the table.
std::vector<ConformanceCase> CollectiveCases();
std::vector<ConformanceCase> FailureCases();
std::vector<ConformanceCase> SplitCases();

inline constexpr Communicator::Options kNormal{.timeout = absl::Seconds(60)};

#if defined(__SANITIZE_THREAD__) || defined(__SANITIZE_ADDRESS__)
inline constexpr bool kIsSanitized = true;
#else
inline constexpr bool kIsSanitized = false;
#endif
// The largest number of elements. A tenth of it also gives many chunks.
inline int64_t Most() { return TestsEverything() ? 1000000 : 100000; }

// A short timeout, and the time within which failures must be noticed. Under a sanitizer on a loaded machine, ranks may
// start 300 ms apart.
inline constexpr absl::Duration kHurry = kIsSanitized ? absl::Seconds(2) : absl::Milliseconds(300);
inline constexpr absl::Duration kSoon = absl::Seconds(kIsSanitized ? 20 : 5);
inline absl::Duration Late() { return kHurry * 3 + absl::Seconds(1); }  // the time at which a late rank arrives

inline ErrorStream Wrong(const Communicator& c, const std::string& what) {
  return Internal() << "rank " << c.rank() << ": " << what << ": ";
}

#define EXPECT_THAT_OR_RETURN(condition, what) \
  if (!(condition)) return Wrong(c, what) << "not so: " #condition

// Memory for an operand, registered or not.
class Operand {
 public:
  static absl::StatusOr<Operand> Make(Communicator& c, bool registered, size_t bytes) {
    Operand operand;
    if (registered) {
      ASSIGN_OR_RETURN(operand.registered_, c.Allocate(bytes, "operand"));
      EXPECT_THAT_OR_RETURN(operand.registered_->bytes() >= bytes, "Allocate");
      EXPECT_THAT_OR_RETURN(reinterpret_cast<uintptr_t>(operand.registered_->data()) % 64 == 0, "Allocate");
    } else {
      operand.plain_.resize(bytes + 64);
    }
    return operand;
  }
  std::byte* data() { return registered_ != nullptr ? registered_->data() : plain_.data(); }

 private:
  std::unique_ptr<RegisteredMemory> registered_;
  std::vector<std::byte> plain_;
};

}  // namespace lockstep
