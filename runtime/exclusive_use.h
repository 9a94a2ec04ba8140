// How an object whose contract is one thread at a time notices a second one, instead of being corrupted by it: the
// object has a flag, and each call that must be alone holds an ExclusiveUse of it. A call that does not get it changes
// nothing.
//
//   const ExclusiveUse use(in_use_);
//   if (!use.ok()) return use.Error("executor @step");

#pragma once

#include <atomic>
#include <string_view>

#include "core/status.h"

namespace lockstep {

class ExclusiveUse {
 public:
  explicit ExclusiveUse(std::atomic_flag& flag) : flag_(flag), ok_(!flag.test_and_set(std::memory_order_acquire)) {}
  ~ExclusiveUse() {
    if (ok_) flag_.clear(std::memory_order_release);
  }
  ExclusiveUse(const ExclusiveUse&) = delete;
  ExclusiveUse& operator=(const ExclusiveUse&) = delete;

  bool ok() const { return ok_; }
  absl::Status Error(std::string_view what) const {
    return FailedPrecondition() << what << " is in use by another thread; one thread at a time may use it";
  }

 private:
  std::atomic_flag& flag_;
  const bool ok_;
};

}  // namespace lockstep
