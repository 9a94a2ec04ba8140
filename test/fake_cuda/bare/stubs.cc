// Every function of the library, weak: those that the fake defines itself stand in for these. They fail: 1 is an error
// of each of the libraries. (Parameters are left to the caller, as the C calling convention allows.)

#include "backends/cuda/cublaslt.h"
#include "backends/cuda/cudnn.h"
#include "backends/cuda/nvrtc.h"
#include "runtime/cuda/driver.h"
#include "runtime/cuda/nccl.h"

#define LOCKSTEP_BARE_STUB(result, name, symbol, parameters)                                           \
  extern "C" __attribute__((weak, visibility("default"))) long lockstep_bare_##name() __asm__(symbol); \
  long lockstep_bare_##name() { return 1; }

LOCKSTEP_BARE_FUNCTIONS(LOCKSTEP_BARE_STUB)
