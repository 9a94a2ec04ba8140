// runtime/cuda/driver.h against cuda.h.

#include "runtime/cuda/driver.h"

#include <cuda.h>

#include "test/cuda_abi/same.h"

LOCKSTEP_CU_ENUMS(LOCKSTEP_SAME_ENUM)
LOCKSTEP_CU_FLAGS(LOCKSTEP_SAME_CONSTANT)
static_assert(lockstep::cuda::kMemHostAllocPortable == CU_MEMHOSTALLOC_PORTABLE);
LOCKSTEP_SAME_TYPE(CUdevice)
LOCKSTEP_SAME_TYPE(CUdeviceptr)
LOCKSTEP_SAME_TYPE(CUhostFn)
LOCKSTEP_SAME_TYPE(CUuuid)
LOCKSTEP_SAME_TYPE(CUDA_MEMCPY2D)

namespace lockstep::cuda {
#define LOCKSTEP_SAME_HERE(type, member, initial) LOCKSTEP_SAME_MEMBER(CUDA_MEMCPY2D, type, member)
LOCKSTEP_CUDA_MEMCPY2D(LOCKSTEP_SAME_HERE)
}  // namespace lockstep::cuda

#define LOCKSTEP_SAME_IN_DRIVER(result, name, symbol, parameters)                                              \
  LOCKSTEP_SAME_FUNCTION(DriverApi, name, cu##name)                                                            \
  static_assert(                                                                                               \
      std::string_view(symbol) == "cuEventElapsedTime" || std::string_view(symbol) == LOCKSTEP_TEXT(cu##name), \
      symbol);
LOCKSTEP_CU_FUNCTIONS(LOCKSTEP_SAME_IN_DRIVER)
LOCKSTEP_CU_LATER_FUNCTIONS(LOCKSTEP_SAME_IN_DRIVER)
