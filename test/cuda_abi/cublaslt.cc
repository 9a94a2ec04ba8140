// backends/cuda/cublaslt.h against cublasLt.h.

#include "backends/cuda/cublaslt.h"

#include <cublasLt.h>

#include "test/cuda_abi/same.h"

LOCKSTEP_CUBLASLT_ENUMS(LOCKSTEP_SAME_ENUM)
LOCKSTEP_SAME_TYPE(cublasLtHandle_t)
LOCKSTEP_SAME_TYPE(cublasLtMatmulDesc_t)
LOCKSTEP_SAME_TYPE(cublasLtMatrixLayout_t)
LOCKSTEP_SAME_TYPE(cublasLtMatmulPreference_t)
LOCKSTEP_SAME_TYPE(cublasLtMatmulAlgo_t)
LOCKSTEP_SAME_TYPE(cublasLtMatmulHeuristicResult_t)

namespace lockstep::cuda {
#define LOCKSTEP_SAME_IN_ALGO(type, member, initial) LOCKSTEP_SAME_MEMBER(cublasLtMatmulAlgo_t, type, member)
LOCKSTEP_CUBLASLT_ALGO(LOCKSTEP_SAME_IN_ALGO)
#define LOCKSTEP_SAME_IN_RESULT(type, member, initial) \
  LOCKSTEP_SAME_MEMBER(cublasLtMatmulHeuristicResult_t, type, member)
LOCKSTEP_CUBLASLT_HEURISTIC_RESULT(LOCKSTEP_SAME_IN_RESULT)
}  // namespace lockstep::cuda

#define LOCKSTEP_SAME_IN_CUBLASLT(result, name, symbol, parameters) \
  LOCKSTEP_SAME_FUNCTION(CublasLtApi, name, cublasLt##name)         \
  LOCKSTEP_SAME_SYMBOL(symbol, cublasLt##name)
LOCKSTEP_CUBLASLT_FUNCTIONS(LOCKSTEP_SAME_IN_CUBLASLT)
