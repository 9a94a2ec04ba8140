// The random numbers of random graphs: equal for equal seeds on every machine.

#pragma once

#include <cstddef>
#include <cstdint>
#include <vector>

namespace lockstep {

// splitmix64 of Steele, Lea and Flood (2014). Unlike the standard library's distributions, it is the same everywhere.
class Random {
 public:
  // The seed is mixed first: otherwise seeds that differ by 1 would give the same numbers, shifted by one.
  explicit Random(uint64_t seed) : state_(seed + 0x2545f4914f6cdd1du) { state_ = Next(); }
  int64_t Below(int64_t bound) { return static_cast<int64_t>(Next() % static_cast<uint64_t>(bound)); }
  bool Chance(int percent) { return Below(100) < percent; }
  double In(double low, double high) { return low + (high - low) * static_cast<double>(Next() >> 11) * 0x1p-53; }
  template <typename T>
  const T& Of(const std::vector<T>& list) {
    return list[static_cast<size_t>(Below(static_cast<int64_t>(list.size())))];
  }

 private:
  uint64_t Next() {
    uint64_t z = state_ += 0x9e3779b97f4a7c15u;
    z = (z ^ (z >> 30)) * 0xbf58476d1ce4e5b9u;
    z = (z ^ (z >> 27)) * 0x94d049bb133111ebu;
    return z ^ (z >> 31);
  }
  uint64_t state_;
};

}  // namespace lockstep
