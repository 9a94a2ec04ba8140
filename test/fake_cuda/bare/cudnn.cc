// A cuDNN 9.19.0 for CUDA 13.

#include "backends/cuda/cudnn.h"

#include <cstring>

#include "test/fake_cuda/bare/bare.h"

using namespace lockstep::cuda;  // NOLINT: the vendor's types have no namespace

LOCKSTEP_BARE size_t cudnnGetVersion() {
  return static_cast<size_t>(lockstep::bare::VersionOr(91900, reinterpret_cast<void*>(&cudnnGetVersion)));
}

LOCKSTEP_BARE size_t cudnnGetCudartVersion() { return 13000; }

LOCKSTEP_BARE const char* cudnnGetErrorString(cudnnStatus_t) { return "CUDNN_STATUS_NOT_SUPPORTED_SHAPE"; }

LOCKSTEP_BARE void cudnnGetLastErrorString(char* text, size_t bytes) {
  std::strncpy(text, "too many dimensions", bytes);
}
