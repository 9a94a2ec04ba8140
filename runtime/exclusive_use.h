// Detects a second thread in an object that only one thread at a time may use, before it corrupts the object. The
// object has a flag, and each call that must be alone holds an ExclusiveUse of it. A call that does not get the flag
// changes nothing. Calls of one thread may nest: a caller holds the flag around several calls that belong together.
//
//   const ExclusiveUse use(in_use_);
//   if (!use.ok()) return use.Error("executor @step");

#pragma once

#include <atomic>
#include <string_view>
#include <thread>

#include "core/status.h"

namespace lockstep {

class ExclusiveUse {
 public:
  // The thread that uses the object, if any.
  using Flag = std::atomic<std::thread::id>;

  explicit ExclusiveUse(Flag& flag) : flag_(flag) {
    const std::thread::id self = std::this_thread::get_id();
    std::thread::id user;  // nobody
    taken_ = flag_.compare_exchange_strong(user, self, std::memory_order_acquire);
    ok_ = taken_ || user == self;
  }
  ~ExclusiveUse() {
    if (taken_) flag_.store(std::thread::id(), std::memory_order_release);
  }
  ExclusiveUse(const ExclusiveUse&) = delete;
  ExclusiveUse& operator=(const ExclusiveUse&) = delete;

  bool ok() const { return ok_; }
  absl::Status Error(std::string_view what) const {
    return FailedPrecondition() << what << " is in use by another thread; one thread at a time may use it";
  }

 private:
  Flag& flag_;
  bool taken_ = false;  // by this object, which releases it
  bool ok_ = false;
};

}  // namespace lockstep
