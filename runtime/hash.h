// A hash of bytes. Ranks compare hashes of data that is too large to send: programs, inputs, states. It depends only on
// the bytes, on all hosts of one byte order, and runs near the speed of memory. Not safe against an adversary. Any
// thread.

#pragma once

#include <cstddef>
#include <cstdint>
#include <string_view>

namespace lockstep {

// Two inputs of equal size that differ only within one block of 8 bytes, aligned from the start, have different hashes.
uint64_t HashBytes(const void* data, size_t bytes, uint64_t seed = 0);

inline uint64_t HashText(std::string_view text, uint64_t seed = 0) { return HashBytes(text.data(), text.size(), seed); }

// Returns the hash of `hash` followed by `number`.
uint64_t HashCombine(uint64_t hash, uint64_t number);

}  // namespace lockstep
