// Weak definitions of every function of the library; those that the fake defines itself replace them. They return 1,
// which is an error in each of the libraries. (They take no parameters, as the C calling convention allows.)

#include "backends/cuda/cublaslt.h"
#include "backends/cuda/cudnn.h"
#include "backends/cuda/nvrtc.h"
#include "runtime/cuda/driver.h"
#include "runtime/cuda/nccl.h"

#define LOCKSTEP_BARE_STUB(result, name, symbol, parameters)                                           \
  extern "C" __attribute__((weak, visibility("default"))) long lockstep_bare_##name() __asm__(symbol); \
  long lockstep_bare_##name() { return 1; }

LOCKSTEP_BARE_FUNCTIONS(LOCKSTEP_BARE_STUB)
