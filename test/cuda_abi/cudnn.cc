// backends/cuda/cudnn.h against cudnn.h.

#include "backends/cuda/cudnn.h"

#include <cudnn.h>

#include "test/cuda_abi/same.h"

LOCKSTEP_CUDNN_ENUMS(LOCKSTEP_SAME_ENUM)
LOCKSTEP_SAME_TYPE(cudnnHandle_t)
LOCKSTEP_SAME_TYPE(cudnnBackendDescriptor_t)
LOCKSTEP_SAME_TYPE(cudnnFraction_t)

namespace lockstep::cuda {
#define LOCKSTEP_SAME_IN_FRACTION(type, member, initial) LOCKSTEP_SAME_MEMBER(cudnnFraction_t, type, member)
LOCKSTEP_CUDNN_FRACTION(LOCKSTEP_SAME_IN_FRACTION)
}  // namespace lockstep::cuda

#define LOCKSTEP_SAME_IN_CUDNN(result, name, symbol, parameters) \
  LOCKSTEP_SAME_FUNCTION(CudnnApi, name, cudnn##name)            \
  LOCKSTEP_SAME_SYMBOL(symbol, cudnn##name)
LOCKSTEP_CUDNN_FUNCTIONS(LOCKSTEP_SAME_IN_CUDNN)
