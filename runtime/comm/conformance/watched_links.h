// Links that forward everything and record the traffic of the chunks of collectives: the number of bytes, and the
// number of consecutive messages. For tests.

#pragma once

#include <atomic>
#include <cstdint>
#include <memory>

#include "runtime/comm/network/links.h"

namespace lockstep {

// The counts of one rank. Read them while nothing is in flight.
struct Watched {
  std::atomic<uint64_t> bytes{0};     // bytes that the rank sent
  std::atomic<uint64_t> sent{0};      // messages that the rank sent
  std::atomic<uint32_t> messages{0};  // the longest chain of consecutive messages that the rank sent or received
  void Reset() { bytes = 0, sent = 0, messages = 0; }
};

// Wraps the links of one rank. The links of all ranks must be wrapped, because each message carries the number of
// messages before it, counted for each chunk (Lamport, "Time, clocks, and the ordering of events in a distributed
// system", 1978). `watched` is borrowed.
std::unique_ptr<Links> WatchLinks(std::unique_ptr<Links> links, Watched* watched);

}  // namespace lockstep
