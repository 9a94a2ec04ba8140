// How an object whose contract is one thread at a time notices a second one, instead of being corrupted by it: the
// object has a flag, and each call that must be alone holds an ExclusiveUse of it. A call that does not get it changes
// nothing. Calls of one thread may nest: who makes several that belong together holds it around them.
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
  // The thread that uses the object, if one does.
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
  bool taken_ = false;  // by this object, which gives it back
  bool ok_ = false;
};

}  // namespace lockstep
