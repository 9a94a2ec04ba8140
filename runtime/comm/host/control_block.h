// The shared state of the ranks of one group (ranks that share memory): presence, started collectives, progress and
// failure. It lies in memory that all of them map, holds only atomics and plain data guarded by them, and is initially
// zero. Only runtime/comm and the servers include this header.

#pragma once

#include <atomic>
#include <cstddef>
#include <cstdint>
#include <cstring>
#include <new>
#include <string_view>

#include "runtime/comm/collective/description.h"
#include "runtime/process/event.h"

namespace lockstep {

// The location of an operand, as its owner publishes it to its peers.
struct MemoryRef {
  // 0: an address in the process that all ranks of the group share; otherwise a segment of the owner
  uint64_t segment = 0;
  uint64_t offset = 0;      // from the beginning of the segment
  int32_t descriptor = -1;  // the segment's file descriptor in the owner
  uint64_t nonce = 0;       // distinguishes the segment from others that reuse the descriptor
};

inline constexpr size_t kLabelBytes = 96;      // with the final 0
inline constexpr size_t kMessageBytes = 1500;  // with the final 0
inline constexpr size_t kHostBytes = 64;

// Copies as much of `text` as fits, with a final 0.
inline void CopyText(std::string_view text, char* to, size_t bytes) {
  const size_t n = text.size() < bytes ? text.size() : bytes - 1;
  text.copy(to, n);  // unlike memcpy, accepts the null pointer of an empty text
  to[n] = '\0';
}

// One rank's description of one collective.
struct alignas(64) Post {
  std::atomic<uint64_t> posted{0};  // 1 + the number of the described collective; stored last
  int64_t posted_at = 0;            // RecordNow()
  OpDescription description;
  MemoryRef input;
  MemoryRef output;
  char label[kLabelBytes] = {};
};

// A counter for each collective in a location that later collectives reuse. It starts at 0 for each of them.
class alignas(64) PerOpCounter {
 public:
  // Returns the value for collective `sequence`, 0 if no rank has incremented it.
  uint32_t Get(uint64_t sequence) const {
    const uint64_t word = word_.load(std::memory_order_acquire);
    return Tag(word) == Tag(sequence << 32) ? static_cast<uint32_t>(word) : 0;
  }
  // Adds 1 unless the value is `limit`. Returns the previous value.
  uint32_t IncrementBelow(uint64_t sequence, uint32_t limit) {
    uint64_t word = word_.load(std::memory_order_acquire);
    for (;;) {
      const uint32_t value = Tag(word) == Tag(sequence << 32) ? static_cast<uint32_t>(word) : 0;
      if (value >= limit) return value;
      const uint64_t next = (sequence << 32) | (value + 1);
      if (word_.compare_exchange_weak(word, next, std::memory_order_acq_rel, std::memory_order_acquire)) return value;
    }
  }

 private:
  static uint32_t Tag(uint64_t word) { return static_cast<uint32_t>(word >> 32); }
  std::atomic<uint64_t> word_{~uint64_t{0} << 32};
};

// A collective in flight. Number s uses slot s % kSlots after all ranks have retired number s - kSlots.
struct Slot {
  PerOpCounter claimed;  // chunks that a rank works on or has finished
  PerOpCounter finished;
  PerOpCounter met;     // 1 when this group's first rank knows that the ranks of other groups have arrived
  PerOpCounter linked;  // 1 when this group's first rank knows that other groups do the same (between_groups.h)
};
inline constexpr uint64_t kSlots = 64;

enum class Presence : uint32_t { kAbsent = 0, kHere = 1, kLeft = 2 };

struct alignas(64) RankState {
  std::atomic<Presence> presence{Presence::kAbsent};
  std::atomic<uint64_t> retired{0};      // this rank has retired all collectives below this number
  std::atomic<uint32_t> working{0};      // this rank is reading or writing operands, its own or its peers'
  std::atomic<uint32_t> saw_failure{0};  // this rank has returned an error to its caller
  std::atomic<uint64_t> share{0};        // 2s + 1: it works on its share of collective s; 2s + 2: it has done the share
  std::atomic<int32_t> waits_for{-1};    // the rank of the world for which this rank waits, or -1
  std::atomic<uint32_t> beats{0};        // incremented on each check during a wait: a sign of life
  int32_t process = 0;                   // 0: a thread of the process
  uint64_t process_start = 0;            // distinguishes a process from a later one with the same number
};

// The first failure, which counts for all ranks.
struct alignas(64) Failure {
  std::atomic<uint32_t> state{0};     // 0: none, 1: being written, 2: complete
  std::atomic<uint32_t> notified{0};  // the other groups have been notified
  int32_t culprit = -1;               // a rank of the world
  int32_t reporter = -1;              // the rank of the world that declared it
  int32_t code = 0;                   // absl::StatusCode
  char message[kMessageBytes] = {};
};

struct alignas(64) ControlHeader {
  int32_t ranks = 0;
  // in the world's group: RecordNow() of the last check by a rank that reports a stall
  std::atomic<int64_t> stall_reported_at{0};
  alignas(64) Event changed;
  Failure failure;
};

// The whole block: a header, then a RankState for each rank, then the slots, each followed by a Post for each rank.
class ControlBlock {
 public:
  ControlBlock() = default;
  ControlBlock(std::byte* memory, int ranks) : memory_(memory), ranks_(ranks) {}

  static size_t Bytes(int ranks) {
    return sizeof(ControlHeader) + ranks * sizeof(RankState) + kSlots * SlotBytes(ranks);
  }

  // Initializes fresh memory as a control block. Call it once, before other ranks see the memory.
  static ControlBlock Initialize(std::byte* memory, int ranks) {
    ControlBlock block(memory, ranks);
    new (memory) ControlHeader;
    block.header().ranks = ranks;
    for (int r = 0; r < ranks; ++r) new (&block.rank(r)) RankState;
    for (uint64_t s = 0; s < kSlots; ++s) {
      new (&block.slot(s)) Slot;
      for (int r = 0; r < ranks; ++r) new (&block.post(s, r)) Post;
    }
    return block;
  }

  int ranks() const { return ranks_; }
  ControlHeader& header() const { return *reinterpret_cast<ControlHeader*>(memory_); }
  RankState& rank(int r) const { return reinterpret_cast<RankState*>(memory_ + sizeof(ControlHeader))[r]; }
  Slot& slot(uint64_t sequence) const { return *reinterpret_cast<Slot*>(SlotBegin(sequence)); }
  Post& post(uint64_t sequence, int r) const { return reinterpret_cast<Post*>(SlotBegin(sequence) + sizeof(Slot))[r]; }

 private:
  static size_t SlotBytes(int ranks) { return sizeof(Slot) + ranks * sizeof(Post); }
  std::byte* SlotBegin(uint64_t sequence) const {
    return memory_ + sizeof(ControlHeader) + ranks_ * sizeof(RankState) + (sequence % kSlots) * SlotBytes(ranks_);
  }
  std::byte* memory_ = nullptr;
  int ranks_ = 0;
};

static_assert(std::atomic<uint64_t>::is_always_lock_free && std::atomic<uint32_t>::is_always_lock_free);

}  // namespace lockstep
