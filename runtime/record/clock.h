// The clock of records: nanoseconds of the steady clock, which all processes of a machine share.

#pragma once

#include <chrono>
#include <cstdint>

namespace lockstep {

inline int64_t RecordNow() {
  return std::chrono::duration_cast<std::chrono::nanoseconds>(std::chrono::steady_clock::now().time_since_epoch())
      .count();
}

}  // namespace lockstep
