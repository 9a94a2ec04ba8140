#include "runtime/process/event.h"

#include <linux/futex.h>
#include <sys/syscall.h>
#include <time.h>
#include <unistd.h>

#include <climits>

namespace lockstep {
namespace {

// Not the waits of the C++ library, which only work between threads of one process.
long Futex(std::atomic<uint32_t>* word, int operation, uint32_t value, const timespec* limit) {
  return syscall(SYS_futex, reinterpret_cast<uint32_t*>(word), operation, value, limit, nullptr, 0);
}

void Pause() {
#if defined(__x86_64__)
  __builtin_ia32_pause();
#endif
}

}  // namespace

void Event::Notify() {
  count_.fetch_add(1, std::memory_order_seq_cst);
  if (sleepers_.load(std::memory_order_seq_cst) != 0) Futex(&count_, FUTEX_WAKE, INT_MAX, nullptr);
}

void Event::Sleep(uint32_t seen, absl::Duration limit) {
  const timespec time = absl::ToTimespec(limit);
  sleepers_.fetch_add(1, std::memory_order_seq_cst);
  // The kernel compares with `seen`: after a notification since then, this returns at once.
  Futex(&count_, FUTEX_WAIT, seen, &time);
  sleepers_.fetch_sub(1, std::memory_order_seq_cst);
}

// Does not yield after spinning: on a busy machine, each yield costs a whole time slice, and a sleeping thread wakes
// sooner.
bool Spinner::Again() {
  if (spins_ == 0) return false;
  --spins_;
  Pause();
  return true;
}

}  // namespace lockstep
