// The function of glibc 2.36 that LLVM's archives call to name temporary files. With this one in its place, a wheel
// runs on systems with an older glibc.
#include <sys/random.h>

#include <cstdint>
#include <cstdlib>

extern "C" uint32_t arc4random() noexcept {
  uint32_t word = 0;
  if (getrandom(&word, sizeof(word), 0) != sizeof(word)) std::abort();
  return word;
}
