// backends/cuda/nvrtc.h against nvrtc.h.

#include "backends/cuda/nvrtc.h"

#include <nvrtc.h>

#include "test/cuda_abi/same.h"

LOCKSTEP_NVRTC_ENUMS(LOCKSTEP_SAME_ENUM)

#define LOCKSTEP_SAME_IN_NVRTC(result, name, symbol, parameters) \
  LOCKSTEP_SAME_FUNCTION(NvrtcApi, name, nvrtc##name)            \
  LOCKSTEP_SAME_SYMBOL(symbol, nvrtc##name)
LOCKSTEP_NVRTC_FUNCTIONS(LOCKSTEP_SAME_IN_NVRTC)
