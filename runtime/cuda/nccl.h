// The functions, types and constants of NCCL (libnccl.so.2) that this project uses. They are declared here so that a
// build needs no files from NVIDIA. `make cuda-abi` compares every line with the vendor's nccl.h. The form of the lists
// is that of table.h. Names are the vendor's; a function is called without its prefix: ncclAllReduce is api.AllReduce.
// Used by the communicator of GPUs, which always ends with CommAbort, because CommDestroy would wait for ranks that may
// be dead. The table is constant once loaded; any thread may call its functions, but calls for one communicator must
// not overlap.

#pragma once

#include <array>
#include <climits>
#include <cstddef>
#include <string_view>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "runtime/cuda/driver.h"
#include "runtime/cuda/library.h"
#include "runtime/cuda/library_search.h"
#include "runtime/cuda/table.h"

namespace lockstep::cuda {

using ncclComm_t = struct ncclComm*;

#define LOCKSTEP_NCCL_RESULTS(V) \
  V(ncclSuccess, 0)              \
  V(ncclUnhandledCudaError, 1)   \
  V(ncclSystemError, 2)          \
  V(ncclInternalError, 3)        \
  V(ncclInvalidArgument, 4)      \
  V(ncclInvalidUsage, 5)         \
  V(ncclRemoteError, 6)          \
  V(ncclInProgress, 7)

#define LOCKSTEP_NCCL_REDUCTIONS(V) \
  V(ncclSum, 0)                     \
  V(ncclProd, 1)                    \
  V(ncclMax, 2)                     \
  V(ncclMin, 3)                     \
  V(ncclAvg, 4)

#define LOCKSTEP_NCCL_DATA_TYPES(V) \
  V(ncclInt8, 0)                    \
  V(ncclUint8, 1)                   \
  V(ncclInt32, 2)                   \
  V(ncclUint32, 3)                  \
  V(ncclInt64, 4)                   \
  V(ncclUint64, 5)                  \
  V(ncclFloat16, 6)                 \
  V(ncclFloat32, 7)                 \
  V(ncclFloat64, 8)                 \
  V(ncclBfloat16, 9)

#define LOCKSTEP_NCCL_ENUMS(E)             \
  E(ncclResult_t, LOCKSTEP_NCCL_RESULTS)   \
  E(ncclRedOp_t, LOCKSTEP_NCCL_REDUCTIONS) \
  E(ncclDataType_t, LOCKSTEP_NCCL_DATA_TYPES)

LOCKSTEP_NCCL_ENUMS(LOCKSTEP_CUDA_ENUM)

// Macros in nccl.h, so they have other names here.
inline constexpr int kNcclUniqueIdBytes = 128;  // NCCL_UNIQUE_ID_BYTES
inline constexpr int kNcclUndefined = INT_MIN;  // NCCL_CONFIG_UNDEF_INT: the library chooses
inline constexpr unsigned kNcclConfigMagic = 0xcafebeef;
inline constexpr unsigned kNcclConfigVersion = 22700;  // NCCL_VERSION(2, 27, 0)

using NcclIdBytes = std::array<char, kNcclUniqueIdBytes>;

#define LOCKSTEP_NCCL_UNIQUE_ID(M) M(NcclIdBytes, internal, {})
struct ncclUniqueId {
  LOCKSTEP_NCCL_UNIQUE_ID(LOCKSTEP_CUDA_MEMBER)
};

// The struct of 2.27. Later versions accept it, because they add members at the end and read only as many bytes as its
// size says.
// clang-format off
#define LOCKSTEP_NCCL_CONFIG(M) \
  M(size_t, size, sizeof(ncclConfig_t)) \
  M(unsigned, magic, kNcclConfigMagic) \
  M(unsigned, version, kNcclConfigVersion) \
  M(int, blocking, kNcclUndefined) \
  M(int, cgaClusterSize, kNcclUndefined) \
  M(int, minCTAs, kNcclUndefined) \
  M(int, maxCTAs, kNcclUndefined) \
  M(const char*, netName, nullptr) \
  M(int, splitShare, kNcclUndefined) \
  M(int, trafficClass, kNcclUndefined) \
  M(const char*, commName, nullptr) \
  M(int, collnetEnable, kNcclUndefined) \
  M(int, CTAPolicy, kNcclUndefined) \
  M(int, shrinkShare, kNcclUndefined) \
  M(int, nvlsCTAs, kNcclUndefined)
// clang-format on
struct ncclConfig_t {
  LOCKSTEP_NCCL_CONFIG(LOCKSTEP_CUDA_MEMBER)
};

#define LOCKSTEP_NCCL_FUNCTIONS(F)                                                                                    \
  F(ncclResult_t, GetVersion, "ncclGetVersion", (int* version))                                                       \
  F(ncclResult_t, GetUniqueId, "ncclGetUniqueId", (ncclUniqueId * id))                                                \
  F(ncclResult_t, CommInitRankConfig, "ncclCommInitRankConfig",                                                       \
    (ncclComm_t * comm, int ranks, ncclUniqueId id, int rank, ncclConfig_t* config))                                  \
  F(ncclResult_t, CommAbort, "ncclCommAbort", (ncclComm_t comm))                                                      \
  F(ncclResult_t, CommGetAsyncError, "ncclCommGetAsyncError", (ncclComm_t comm, ncclResult_t * error))                \
  F(ncclResult_t, AllReduce, "ncclAllReduce",                                                                         \
    (const void* input, void* output, size_t count, ncclDataType_t type, ncclRedOp_t op, ncclComm_t comm,             \
     CUstream stream))                                                                                                \
  F(ncclResult_t, Broadcast, "ncclBroadcast",                                                                         \
    (const void* input, void* output, size_t count, ncclDataType_t type, int root, ncclComm_t comm, CUstream stream)) \
  F(ncclResult_t, AllGather, "ncclAllGather",                                                                         \
    (const void* input, void* output, size_t input_count, ncclDataType_t type, ncclComm_t comm, CUstream stream))     \
  F(ncclResult_t, ReduceScatter, "ncclReduceScatter",                                                                 \
    (const void* input, void* output, size_t output_count, ncclDataType_t type, ncclRedOp_t op, ncclComm_t comm,      \
     CUstream stream))                                                                                                \
  F(ncclResult_t, Send, "ncclSend",                                                                                   \
    (const void* input, size_t count, ncclDataType_t type, int peer, ncclComm_t comm, CUstream stream))               \
  F(ncclResult_t, Recv, "ncclRecv",                                                                                   \
    (void* output, size_t count, ncclDataType_t type, int peer, ncclComm_t comm, CUstream stream))                    \
  F(ncclResult_t, GroupStart, "ncclGroupStart", ())                                                                   \
  F(ncclResult_t, GroupEnd, "ncclGroupEnd", ())                                                                       \
  F(ncclResult_t, MemAlloc, "ncclMemAlloc", (void** memory, size_t bytes))                                            \
  F(ncclResult_t, MemFree, "ncclMemFree", (void* memory))                                                             \
  F(ncclResult_t, CommRegister, "ncclCommRegister", (ncclComm_t comm, void* memory, size_t bytes, void** handle))     \
  F(ncclResult_t, CommDeregister, "ncclCommDeregister", (ncclComm_t comm, void* handle))                              \
  F(const char*, GetErrorString, "ncclGetErrorString", (ncclResult_t result))                                         \
  F(const char*, GetLastError, "ncclGetLastError", (ncclComm_t comm))

struct NcclApi {
  LoadedFrom from;
  LOCKSTEP_NCCL_FUNCTIONS(LOCKSTEP_CUDA_POINTER)

  // Returns OK if `result` is ncclSuccess. Otherwise returns an error with `call` ("ncclAllReduce of bucket 0"), NCCL's
  // text of the error, and NCCL's last error in this process.
  absl::Status Check(ncclResult_t result, std::string_view call) const;
};

// The required library: libnccl.so.2, 2.27 or later.
const LibrarySpec& NcclSpec();

// Returns the table of the first suitable NCCL in `places`; the error of FindLibrary (library_search.h) if there is
// none. The functions stay valid while the process lives.
absl::StatusOr<NcclApi> FindNccl(const SearchPlaces& places);

// Returns the table that this process uses. The first call searches the places of the process.
absl::StatusOr<const NcclApi*> Nccl();

}  // namespace lockstep::cuda
