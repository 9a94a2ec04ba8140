// Defines the references of steps to memory. A buffer is a number in an executable's table, a slice is a range of bytes
// in a buffer. Addresses do not exist before an executor allocates memory for each buffer. Plain values; any thread.

#pragma once

#include <cstdint>
#include <ostream>
#include <string>
#include <string_view>

namespace lockstep {

enum class BufferKind : uint8_t {
  kInput,     // memory of the caller, read in place during one run
  kResult,    // memory of the caller or the executor, written during one run
  kState,     // memory of the executor, the caller or several ranks; keeps its contents between runs
  kSettings,  // memory of the executor; the values of all settings, in f64
  kConstant,  // memory of the executable; never written
  kArena,     // one buffer for all temporary values and scratch memory, which share it by lifetimes
  // One buffer for each axis of the mesh with collectives, and one for each lane, allocated by its communicator. The
  // operands of the collectives share it by lifetimes and are used without copies.
  kRegistered,
};

std::string_view BufferKindName(BufferKind kind);

// The address of each buffer is a multiple of this, except for inputs, results and states in memory of the caller, and
// for parts of states that ranks share. These are aligned to their elements.
inline constexpr uint64_t kBufferAlignment = 64;

struct Buffer {
  BufferKind kind = BufferKind::kArena;
  std::string name;  // the name of the input, result, state or axis; empty for the arena
  uint64_t bytes = 0;
  // For registered and shared memory: the position of the axis in the mesh. Lanes are numbered after the axes.
  int mesh_axis = 0;
  // For states: the number of ranks, along mesh_axis, that share this memory.
  int sharers = 1;
  // The buffer of which this one is the part of this rank. Ranks share that buffer. It has `sharers` equal parts, and
  // each rank writes the part at its coordinate. -1: not a part of another buffer.
  int32_t part_of = -1;

  // The bytes to count for one rank, so that the sum over all ranks is the memory in use.
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
