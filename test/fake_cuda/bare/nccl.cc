// An NCCL 2.28.9.

#include "runtime/cuda/nccl.h"

#include "test/fake_cuda/bare/bare.h"

using namespace lockstep::cuda;  // NOLINT: the vendor's types have no namespace

LOCKSTEP_BARE ncclResult_t ncclGetVersion(int* version) {
  *version = lockstep::bare::VersionOr(22809, reinterpret_cast<void*>(&ncclGetVersion));
  return ncclSuccess;
}

LOCKSTEP_BARE const char* ncclGetErrorString(ncclResult_t) { return "unhandled system error"; }

LOCKSTEP_BARE const char* ncclGetLastError(ncclComm_t) { return "no socket interface found"; }
