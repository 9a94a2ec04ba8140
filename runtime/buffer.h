// How steps name memory: a buffer is a number in an executable's table, a slice is a range of bytes in a buffer.
// Addresses appear only when an executor has given each buffer its memory. Plain values; any thread.

#pragma once

#include <cstdint>
#include <ostream>
#include <string>
#include <string_view>

namespace lockstep {

enum class BufferKind : uint8_t {
  kInput,     // the caller's memory, read in place during one run
  kResult,    // the caller's memory or the executor's, written during one run
  kState,     // the executor's, the caller's, or of several ranks'; keeps its contents between runs
  kSettings,  // the executor's; the values of all settings, in f64
  kConstant,  // the executable's; never written
  kArena,     // one for all temporary values and scratch memory, which share it by lifetimes
  // One for each axis of the mesh with collectives, and each lane, given out by the axis' communicator, in which what
  // they take and give shares memory by lifetimes: collectives work in it without copies.
  kRegistered,
};

std::string_view BufferKindName(BufferKind kind);

// Every buffer lies at an address that is a multiple of this, but for inputs, results and states in the caller's
// memory, and for parts of states that ranks share: those are aligned to their elements.
inline constexpr uint64_t kBufferAlignment = 64;

struct Buffer {
  BufferKind kind = BufferKind::kArena;
  std::string name;  // of the input, result, state or axis; empty for the arena
  uint64_t bytes = 0;
  // Of registered memory, and of what ranks share: position of the axis in the mesh, or, behind them, of the lane.
  int mesh_axis = 0;
  // Of a state: how many ranks, those along mesh_axis, have it as one piece of memory.
  int sharers = 1;
  // It is this rank's part of that buffer, which ranks share: of as many equal parts as there are sharers the one at
  // the rank's coordinate. Each rank writes its own. -1: it is memory of its own.
  int32_t part_of = -1;

  // The bytes that count for a rank, so that those of all ranks add up to what there is.
  uint64_t bytes_of_rank() const {
    return part_of >= 0 ? 0 : (bytes + static_cast<uint64_t>(sharers) - 1) / static_cast<uint64_t>(sharers);
  }
  std::string ToString() const;  // "state fc1.weight", "part of state fc1.weight", "buckets data", "arena"
};

struct BufferSlice {
  int32_t buffer = -1;  // position in the executable's table
  uint64_t offset = 0;  // bytes
  uint64_t bytes = 0;

  bool operator==(const BufferSlice&) const = default;
  bool Overlaps(const BufferSlice& other) const {
    return buffer == other.buffer && bytes > 0 && other.bytes > 0 && offset < other.offset + other.bytes &&
           other.offset < offset + bytes;
  }
};

inline uint64_t AlignUp(uint64_t bytes) { return (bytes + kBufferAlignment - 1) / kBufferAlignment * kBufferAlignment; }

}  // namespace lockstep
