// An NVRTC 13.0.

#include "backends/cuda/nvrtc.h"

#include "test/fake_cuda/bare/bare.h"

using namespace lockstep::cuda;  // NOLINT: the vendor's types have no namespace

LOCKSTEP_BARE nvrtcResult nvrtcVersion(int* major, int* minor) {
  const int number = lockstep::bare::VersionOr(1300, reinterpret_cast<void*>(&nvrtcVersion));
  *major = number / 100;
  *minor = number % 100;
  return NVRTC_SUCCESS;
}
