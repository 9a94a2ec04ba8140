// A hash of bytes, by which ranks compare what is too large to send: programs, inputs, states. It depends on the bytes
// alone, on every host of one byte order, and runs near the speed of memory. Not for use against an adversary. Any
// thread.

#pragma once

#include <cstddef>
#include <cstdint>
#include <string_view>

namespace lockstep {

// Any two inputs of one size that differ within a single block of 8 bytes, aligned from the start, have different
// hashes.
uint64_t HashBytes(const void* data, size_t bytes, uint64_t seed = 0);

inline uint64_t HashText(std::string_view text, uint64_t seed = 0) { return HashBytes(text.data(), text.size(), seed); }

// `hash` followed by one more number.
uint64_t HashCombine(uint64_t hash, uint64_t number);

}  // namespace lockstep
