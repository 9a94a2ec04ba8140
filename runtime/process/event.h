// How ranks that share memory wait for each other: an event that is notified whenever something changed, in memory that
// may be shared between processes. Waiting spins for a moment and then sleeps, so that more ranks than cores do not
// keep the one from working for which they wait. All members may be called by any thread of any process.

#pragma once

#include <atomic>
#include <cstdint>

#include "absl/time/time.h"

namespace lockstep {

class Event {
 public:
  // Wakes whoever waits. Call it after the change (an atomic store) that others wait for.
  void Notify();

  // The number of notifications so far: read it, look whether what one waits for has happened, and if not, Sleep(seen).
  uint32_t count() const { return count_.load(std::memory_order_seq_cst); }

  // Returns when there has been a notification since count() was `seen`, after at most `limit`, or earlier for no
  // reason.
  void Sleep(uint32_t seen, absl::Duration limit);

 private:
  std::atomic<uint32_t> count_{0};
  std::atomic<uint32_t> sleepers_{0};
};

// How long to look again and again before sleeping. Spinning only pays when whoever one waits for runs at the same
// time.
class Spinner {
 public:
  // `crowded`: there are more ranks than cores.
  explicit Spinner(bool crowded) : spins_(crowded ? 0 : kSpins) {}

  // True while it is worth looking again; false when one should sleep.
  bool Again();

 private:
  static constexpr int kSpins = 4000;  // about 50 to 150 us, depending on how long the processor pauses
  int spins_;
};

}  // namespace lockstep
