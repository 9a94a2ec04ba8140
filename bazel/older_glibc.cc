// Symbols that glibc has since 2.32, and that LLVM's archives and the C++ library refer to. With these in their place,
// a wheel runs on systems with an older glibc. They are not visible outside the extension module.
#include <malloc.h>
#include <sys/random.h>

#include <cstdint>
#include <cstdlib>

#pragma GCC diagnostic ignored "-Wdeprecated-declarations"  // mallinfo, which mallinfo2 replaces

extern "C" {

// Of glibc 2.32: whether the process has one thread, so that reference counts need not be atomic. False is always
// right.
char __libc_single_threaded = 0;

// Of glibc 2.33: LLVM prints these numbers in statistics. Those of the older function overflow at 2 GiB.
struct mallinfo2 mallinfo2() noexcept {
  const struct mallinfo info = mallinfo();
  struct mallinfo2 wide = {};
  wide.arena = static_cast<unsigned>(info.arena);
  wide.hblkhd = static_cast<unsigned>(info.hblkhd);
  wide.uordblks = static_cast<unsigned>(info.uordblks);
  wide.fordblks = static_cast<unsigned>(info.fordblks);
  return wide;
}

// Of glibc 2.36: LLVM names temporary files by it.
uint32_t arc4random() noexcept {
  uint32_t word = 0;
  if (getrandom(&word, sizeof(word), 0) != sizeof(word)) std::abort();
  return word;
}
}
