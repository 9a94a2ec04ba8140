// Links that pass everything on, and see what the chunks of collectives send: how many bytes, and how many messages one
// after the other. For tests.

#pragma once

#include <atomic>
#include <cstdint>
#include <memory>

#include "runtime/comm/network/links.h"

namespace lockstep {

// Of one rank. Read while nothing is in flight.
struct Watched {
  std::atomic<uint64_t> bytes{0};     // that the rank sent
  std::atomic<uint64_t> sent{0};      // messages, likewise
  std::atomic<uint32_t> messages{0};  // that came to it, or left, one after the other
  void Reset() { bytes = 0, sent = 0, messages = 0; }
};

// All ranks' links have to be watched, since every message carries how many were before it (Lamport, "Time, clocks, and
// the ordering of events in a distributed system", 1978), for each chunk by itself. `watched` is borrowed.
std::unique_ptr<Links> WatchLinks(std::unique_ptr<Links> links, Watched* watched);

}  // namespace lockstep
