// An event for waits between ranks that share memory. It is notified at every change, and may lie in memory that
// processes share. A wait spins for a moment and then sleeps, so that with more ranks than cores it does not delay the
// rank for which it waits. Any thread of any process may call all members.

#pragma once

#include <atomic>
#include <cstdint>

#include "absl/time/time.h"

namespace lockstep {

class Event {
 public:
  // Wakes all waiting threads. Call it after the change (an atomic store) for which others wait.
  void Notify();

  // The number of notifications so far. A waiting thread reads it, checks its condition, and if that is false, calls
  // Sleep(seen).
  uint32_t count() const { return count_.load(std::memory_order_seq_cst); }

  // Returns when there has been a notification since count() was `seen`, after at most `limit`, or earlier without a
  // reason.
  void Sleep(uint32_t seen, absl::Duration limit);

 private:
  std::atomic<uint32_t> count_{0};
  std::atomic<uint32_t> sleepers_{0};
};

// Limits the spinning before a sleep. Spinning only helps if the awaited rank runs at the same time.
class Spinner {
 public:
  // `crowded`: there are more ranks than cores.
  explicit Spinner(bool crowded) : spins_(crowded ? 0 : kSpins) {}

  // Returns true while the caller should check again, and false when it should sleep.
  bool Again();

 private:
  static constexpr int kSpins = 4000;  // about 50 to 150 us, depending on the pause of the processor
  int spins_;
};

}  // namespace lockstep
