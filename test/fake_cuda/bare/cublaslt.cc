// A cuBLASLt 13.1.0, made for the CUDA of its version.

#include "backends/cuda/cublaslt.h"

#include "test/fake_cuda/bare/bare.h"

using namespace lockstep::cuda;  // NOLINT: the vendor's types have no namespace

LOCKSTEP_BARE size_t cublasLtGetVersion() {
  return static_cast<size_t>(lockstep::bare::VersionOr(130100, reinterpret_cast<void*>(&cublasLtGetVersion)));
}

LOCKSTEP_BARE size_t cublasLtGetCudartVersion() { return cublasLtGetVersion() / 10000 * 1000; }

LOCKSTEP_BARE const char* cublasLtGetStatusName(cublasStatus_t) { return "CUBLAS_STATUS_NOT_SUPPORTED"; }

LOCKSTEP_BARE const char* cublasLtGetStatusString(cublasStatus_t) { return "the functionality is not supported"; }
