// The functions, types and constants of the CUDA driver (libcuda.so.1) that this project uses. They are declared here
// so that a build needs no files from NVIDIA. `make cuda-abi` compares every line with the vendor's cuda.h. The form of
// the lists is that of table.h. Names and meanings are the vendor's; a function is called without its prefix:
// cuMemAlloc is api.MemAlloc. Used by the device and the GPU backend. The table is constant once loaded; any thread may
// call its functions.

#pragma once

#include <cstddef>
#include <cstdint>
#include <string_view>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "runtime/cuda/library.h"
#include "runtime/cuda/library_search.h"
#include "runtime/cuda/table.h"

namespace lockstep::cuda {

// The handles of the driver: the primary context, streams, events, kernels and graphs.
using CUdevice = int;
using CUdeviceptr = uint64_t;  // an address of device memory, equal to the pointers of libraries and kernels
using CUcontext = struct CUctx_st*;
using CUmodule = struct CUmod_st*;
using CUfunction = struct CUfunc_st*;
using CUstream = struct CUstream_st*;  // the same object as the libraries' cudaStream_t
using CUevent = struct CUevent_st*;
using CUgraph = struct CUgraph_st*;
using CUgraphExec = struct CUgraphExec_st*;
using CUarray = struct CUarray_st*;
using CUhostFn = void (*)(void* user_data);

#define LOCKSTEP_CU_RESULTS(V)                  \
  V(CUDA_SUCCESS, 0)                            \
  V(CUDA_ERROR_INVALID_VALUE, 1)                \
  V(CUDA_ERROR_OUT_OF_MEMORY, 2)                \
  V(CUDA_ERROR_NOT_INITIALIZED, 3)              \
  V(CUDA_ERROR_DEINITIALIZED, 4)                \
  V(CUDA_ERROR_STUB_LIBRARY, 34)                \
  V(CUDA_ERROR_NO_DEVICE, 100)                  \
  V(CUDA_ERROR_INVALID_DEVICE, 101)             \
  V(CUDA_ERROR_INVALID_IMAGE, 200)              \
  V(CUDA_ERROR_INVALID_CONTEXT, 201)            \
  V(CUDA_ERROR_NO_BINARY_FOR_GPU, 209)          \
  V(CUDA_ERROR_ECC_UNCORRECTABLE, 214)          \
  V(CUDA_ERROR_INVALID_PTX, 218)                \
  V(CUDA_ERROR_UNSUPPORTED_PTX_VERSION, 222)    \
  V(CUDA_ERROR_INVALID_HANDLE, 400)             \
  V(CUDA_ERROR_NOT_FOUND, 500)                  \
  V(CUDA_ERROR_NOT_READY, 600)                  \
  V(CUDA_ERROR_ILLEGAL_ADDRESS, 700)            \
  V(CUDA_ERROR_LAUNCH_OUT_OF_RESOURCES, 701)    \
  V(CUDA_ERROR_LAUNCH_TIMEOUT, 702)             \
  V(CUDA_ERROR_LAUNCH_FAILED, 719)              \
  V(CUDA_ERROR_NOT_SUPPORTED, 801)              \
  V(CUDA_ERROR_SYSTEM_NOT_READY, 802)           \
  V(CUDA_ERROR_SYSTEM_DRIVER_MISMATCH, 803)     \
  V(CUDA_ERROR_STREAM_CAPTURE_UNSUPPORTED, 900) \
  V(CUDA_ERROR_STREAM_CAPTURE_INVALIDATED, 901) \
  V(CUDA_ERROR_UNKNOWN, 999)

#define LOCKSTEP_CU_DEVICE_ATTRIBUTES(V)                          \
  V(CU_DEVICE_ATTRIBUTE_MAX_THREADS_PER_BLOCK, 1)                 \
  V(CU_DEVICE_ATTRIBUTE_MAX_GRID_DIM_X, 5)                        \
  V(CU_DEVICE_ATTRIBUTE_MAX_GRID_DIM_Y, 6)                        \
  V(CU_DEVICE_ATTRIBUTE_MAX_SHARED_MEMORY_PER_BLOCK, 8)           \
  V(CU_DEVICE_ATTRIBUTE_WARP_SIZE, 10)                            \
  V(CU_DEVICE_ATTRIBUTE_MULTIPROCESSOR_COUNT, 16)                 \
  V(CU_DEVICE_ATTRIBUTE_COMPUTE_MODE, 20)                         \
  V(CU_DEVICE_ATTRIBUTE_PCI_BUS_ID, 33)                           \
  V(CU_DEVICE_ATTRIBUTE_PCI_DEVICE_ID, 34)                        \
  V(CU_DEVICE_ATTRIBUTE_L2_CACHE_SIZE, 38)                        \
  V(CU_DEVICE_ATTRIBUTE_MAX_THREADS_PER_MULTIPROCESSOR, 39)       \
  V(CU_DEVICE_ATTRIBUTE_PCI_DOMAIN_ID, 50)                        \
  V(CU_DEVICE_ATTRIBUTE_COMPUTE_CAPABILITY_MAJOR, 75)             \
  V(CU_DEVICE_ATTRIBUTE_COMPUTE_CAPABILITY_MINOR, 76)             \
  V(CU_DEVICE_ATTRIBUTE_MAX_SHARED_MEMORY_PER_MULTIPROCESSOR, 81) \
  V(CU_DEVICE_ATTRIBUTE_MAX_SHARED_MEMORY_PER_BLOCK_OPTIN, 97)    \
  V(CU_DEVICE_ATTRIBUTE_MAX_BLOCKS_PER_MULTIPROCESSOR, 106)

#define LOCKSTEP_CU_FUNCTION_ATTRIBUTES(V)      \
  V(CU_FUNC_ATTRIBUTE_MAX_THREADS_PER_BLOCK, 0) \
  V(CU_FUNC_ATTRIBUTE_SHARED_SIZE_BYTES, 1)     \
  V(CU_FUNC_ATTRIBUTE_LOCAL_SIZE_BYTES, 3)      \
  V(CU_FUNC_ATTRIBUTE_NUM_REGS, 4)              \
  V(CU_FUNC_ATTRIBUTE_MAX_DYNAMIC_SHARED_SIZE_BYTES, 8)

#define LOCKSTEP_CU_JIT_OPTIONS(V)         \
  V(CU_JIT_MAX_REGISTERS, 0)               \
  V(CU_JIT_INFO_LOG_BUFFER, 3)             \
  V(CU_JIT_INFO_LOG_BUFFER_SIZE_BYTES, 4)  \
  V(CU_JIT_ERROR_LOG_BUFFER, 5)            \
  V(CU_JIT_ERROR_LOG_BUFFER_SIZE_BYTES, 6) \
  V(CU_JIT_OPTIMIZATION_LEVEL, 7)

#define LOCKSTEP_CU_MEMORY_TYPES(V) \
  V(CU_MEMORYTYPE_HOST, 1)          \
  V(CU_MEMORYTYPE_DEVICE, 2)

#define LOCKSTEP_CU_CAPTURE_MODES(V)        \
  V(CU_STREAM_CAPTURE_MODE_GLOBAL, 0)       \
  V(CU_STREAM_CAPTURE_MODE_THREAD_LOCAL, 1) \
  V(CU_STREAM_CAPTURE_MODE_RELAXED, 2)

#define LOCKSTEP_CU_CAPTURE_STATES(V)   \
  V(CU_STREAM_CAPTURE_STATUS_NONE, 0)   \
  V(CU_STREAM_CAPTURE_STATUS_ACTIVE, 1) \
  V(CU_STREAM_CAPTURE_STATUS_INVALIDATED, 2)

// Flags. The functions take them as unsigned integers.
#define LOCKSTEP_CU_FLAGS(V)      \
  V(CU_STREAM_DEFAULT, 0)         \
  V(CU_STREAM_NON_BLOCKING, 1)    \
  V(CU_EVENT_DEFAULT, 0)          \
  V(CU_EVENT_BLOCKING_SYNC, 1)    \
  V(CU_EVENT_DISABLE_TIMING, 2)   \
  V(CU_EVENT_WAIT_DEFAULT, 0)     \
  V(CU_COMPUTEMODE_DEFAULT, 0)    \
  V(CU_COMPUTEMODE_PROHIBITED, 2) \
  V(CUDA_GRAPH_INSTANTIATE_FLAG_AUTO_FREE_ON_LAUNCH, 1)

#define LOCKSTEP_CU_ENUMS(E)                               \
  E(CUresult, LOCKSTEP_CU_RESULTS)                         \
  E(CUdevice_attribute, LOCKSTEP_CU_DEVICE_ATTRIBUTES)     \
  E(CUfunction_attribute, LOCKSTEP_CU_FUNCTION_ATTRIBUTES) \
  E(CUjit_option, LOCKSTEP_CU_JIT_OPTIONS)                 \
  E(CUmemorytype, LOCKSTEP_CU_MEMORY_TYPES)                \
  E(CUstreamCaptureMode, LOCKSTEP_CU_CAPTURE_MODES)        \
  E(CUstreamCaptureStatus, LOCKSTEP_CU_CAPTURE_STATES)

LOCKSTEP_CU_ENUMS(LOCKSTEP_CUDA_ENUM)
enum CUflags : unsigned { LOCKSTEP_CU_FLAGS(LOCKSTEP_CUDA_ENUMERATOR) };

// Macros in cuda.h, so they have other names here.
inline constexpr unsigned kMemHostAllocPortable = 1;  // CU_MEMHOSTALLOC_PORTABLE: pinned for all contexts

// clang-format off
#define LOCKSTEP_CUDA_MEMCPY2D(M) \
  M(size_t, srcXInBytes, 0) \
  M(size_t, srcY, 0) \
  M(CUmemorytype, srcMemoryType, {}) \
  M(const void*, srcHost, nullptr) \
  M(CUdeviceptr, srcDevice, 0) \
  M(CUarray, srcArray, nullptr) \
  M(size_t, srcPitch, 0) \
  M(size_t, dstXInBytes, 0) \
  M(size_t, dstY, 0) \
  M(CUmemorytype, dstMemoryType, {}) \
  M(void*, dstHost, nullptr) \
  M(CUdeviceptr, dstDevice, 0) \
  M(CUarray, dstArray, nullptr) \
  M(size_t, dstPitch, 0) \
  M(size_t, WidthInBytes, 0) \
  M(size_t, Height, 0)
// clang-format on
struct CUDA_MEMCPY2D {
  LOCKSTEP_CUDA_MEMCPY2D(LOCKSTEP_CUDA_MEMBER)
};

struct CUuuid {
  char bytes[16];
};

// The symbol is that of the name in cuda.h of CUDA 13. cuEventElapsedTime is the older of two equivalent functions,
// because drivers before 12.8 have only this one. If the name means another symbol in CUDA 12, the name here is that of
// the symbol: cuDeviceGetUuid_v2.
#define LOCKSTEP_CU_FUNCTIONS(F)                                                                                       \
  F(CUresult, Init, "cuInit", (unsigned flags))                                                                        \
  F(CUresult, DriverGetVersion, "cuDriverGetVersion", (int* version))                                                  \
  F(CUresult, DeviceGetCount, "cuDeviceGetCount", (int* count))                                                        \
  F(CUresult, DeviceGet, "cuDeviceGet", (CUdevice * device, int ordinal))                                              \
  F(CUresult, DeviceGetName, "cuDeviceGetName", (char* name, int length, CUdevice device))                             \
  F(CUresult, DeviceGetUuid_v2, "cuDeviceGetUuid_v2", (CUuuid * uuid, CUdevice device))                                \
  F(CUresult, DeviceTotalMem, "cuDeviceTotalMem_v2", (size_t* bytes, CUdevice device))                                 \
  F(CUresult, DeviceGetAttribute, "cuDeviceGetAttribute", (int* value, CUdevice_attribute attribute, CUdevice device)) \
  F(CUresult, DevicePrimaryCtxRetain, "cuDevicePrimaryCtxRetain", (CUcontext * context, CUdevice device))              \
  F(CUresult, DevicePrimaryCtxRelease, "cuDevicePrimaryCtxRelease_v2", (CUdevice device))                              \
  F(CUresult, CtxSetCurrent, "cuCtxSetCurrent", (CUcontext context))                                                   \
  F(CUresult, MemGetInfo, "cuMemGetInfo_v2", (size_t* free, size_t* total))                                            \
  F(CUresult, MemAlloc, "cuMemAlloc_v2", (CUdeviceptr * memory, size_t bytes))                                         \
  F(CUresult, MemFree, "cuMemFree_v2", (CUdeviceptr memory))                                                           \
  F(CUresult, MemHostAlloc, "cuMemHostAlloc", (void** memory, size_t bytes, unsigned flags))                           \
  F(CUresult, MemFreeHost, "cuMemFreeHost", (void* memory))                                                            \
  F(CUresult, MemcpyHtoDAsync, "cuMemcpyHtoDAsync_v2",                                                                 \
    (CUdeviceptr to, const void* from, size_t bytes, CUstream stream))                                                 \
  F(CUresult, MemcpyDtoHAsync, "cuMemcpyDtoHAsync_v2", (void* to, CUdeviceptr from, size_t bytes, CUstream stream))    \
  F(CUresult, MemcpyDtoDAsync, "cuMemcpyDtoDAsync_v2",                                                                 \
    (CUdeviceptr to, CUdeviceptr from, size_t bytes, CUstream stream))                                                 \
  F(CUresult, Memcpy2DAsync, "cuMemcpy2DAsync_v2", (const CUDA_MEMCPY2D* copy, CUstream stream))                       \
  F(CUresult, MemsetD8Async, "cuMemsetD8Async",                                                                        \
    (CUdeviceptr memory, unsigned char value, size_t bytes, CUstream stream))                                          \
  F(CUresult, StreamCreateWithPriority, "cuStreamCreateWithPriority",                                                  \
    (CUstream * stream, unsigned flags, int priority))                                                                 \
  F(CUresult, StreamDestroy, "cuStreamDestroy_v2", (CUstream stream))                                                  \
  F(CUresult, StreamSynchronize, "cuStreamSynchronize", (CUstream stream))                                             \
  F(CUresult, StreamQuery, "cuStreamQuery", (CUstream stream))                                                         \
  F(CUresult, StreamWaitEvent, "cuStreamWaitEvent", (CUstream stream, CUevent event, unsigned flags))                  \
  F(CUresult, EventCreate, "cuEventCreate", (CUevent * event, unsigned flags))                                         \
  F(CUresult, EventRecord, "cuEventRecord", (CUevent event, CUstream stream))                                          \
  F(CUresult, EventQuery, "cuEventQuery", (CUevent event))                                                             \
  F(CUresult, EventSynchronize, "cuEventSynchronize", (CUevent event))                                                 \
  F(CUresult, EventElapsedTime, "cuEventElapsedTime", (float* milliseconds, CUevent start, CUevent end))               \
  F(CUresult, EventDestroy, "cuEventDestroy_v2", (CUevent event))                                                      \
  F(CUresult, LaunchHostFunc, "cuLaunchHostFunc", (CUstream stream, CUhostFn function, void* user_data))               \
  F(CUresult, LaunchKernel, "cuLaunchKernel",                                                                          \
    (CUfunction function, unsigned grid_x, unsigned grid_y, unsigned grid_z, unsigned block_x, unsigned block_y,       \
     unsigned block_z, unsigned shared_bytes, CUstream stream, void** parameters, void** extra))                       \
  F(CUresult, ModuleLoadDataEx, "cuModuleLoadDataEx",                                                                  \
    (CUmodule * module, const void* image, unsigned options, CUjit_option* names, void** values))                      \
  F(CUresult, ModuleGetFunction, "cuModuleGetFunction", (CUfunction * function, CUmodule module, const char* name))    \
  F(CUresult, ModuleUnload, "cuModuleUnload", (CUmodule module))                                                       \
  F(CUresult, FuncGetAttribute, "cuFuncGetAttribute",                                                                  \
    (int* value, CUfunction_attribute attribute, CUfunction function))                                                 \
  F(CUresult, FuncSetAttribute, "cuFuncSetAttribute",                                                                  \
    (CUfunction function, CUfunction_attribute attribute, int value))                                                  \
  F(CUresult, StreamBeginCapture, "cuStreamBeginCapture_v2", (CUstream stream, CUstreamCaptureMode mode))              \
  F(CUresult, StreamEndCapture, "cuStreamEndCapture", (CUstream stream, CUgraph * graph))                              \
  F(CUresult, StreamIsCapturing, "cuStreamIsCapturing", (CUstream stream, CUstreamCaptureStatus * status))             \
  F(CUresult, GraphInstantiateWithFlags, "cuGraphInstantiateWithFlags",                                                \
    (CUgraphExec * executable, CUgraph graph, unsigned long long flags))                                               \
  F(CUresult, GraphLaunch, "cuGraphLaunch", (CUgraphExec executable, CUstream stream))                                 \
  F(CUresult, GraphExecDestroy, "cuGraphExecDestroy", (CUgraphExec executable))                                        \
  F(CUresult, GraphDestroy, "cuGraphDestroy", (CUgraph graph))                                                         \
  F(CUresult, GetErrorName, "cuGetErrorName", (CUresult result, const char** name))                                    \
  F(CUresult, GetErrorString, "cuGetErrorString", (CUresult result, const char** text))

// Functions of later drivers: null in the table of a driver without them. cuFuncLoad came with CUDA 12.4.
#define LOCKSTEP_CU_LATER_FUNCTIONS(F) F(CUresult, FuncLoad, "cuFuncLoad", (CUfunction function))

struct DriverApi {
  LoadedFrom from;  // its version is that of CUDA that the driver supports
  LOCKSTEP_CU_FUNCTIONS(LOCKSTEP_CUDA_POINTER)
  LOCKSTEP_CU_LATER_FUNCTIONS(LOCKSTEP_CUDA_POINTER)

  // Returns OK if `result` is CUDA_SUCCESS. Otherwise returns an error with `call` ("cuMemAlloc of 64 bytes"), the
  // error and the driver's text: ResourceExhausted if memory ran out, FailedPrecondition if there is no GPU or the
  // driver does not fit it, otherwise Internal.
  absl::Status Check(CUresult result, std::string_view call) const;
};

// The required library: libcuda.so.1, of CUDA 12.0 or later.
const LibrarySpec& DriverSpec();

// Returns the table of an opened driver. Returns an error if it is too old or lacks functions. For drivers that are not
// searched for, such as those of tests.
absl::StatusOr<DriverApi> LoadDriverApi(const Library& library);

// Returns the table of the first suitable driver in `places`; the error of FindLibrary (library_search.h) if there is
// none. Does not call cuInit. The functions stay valid while the process lives.
absl::StatusOr<DriverApi> FindDriver(const SearchPlaces& places);

// Returns the table that this process uses. The first call searches the places of the process.
absl::StatusOr<const DriverApi*> Driver();

// Returns an error if a library needs a later CUDA, by its first number, than the driver supports. `cudart` is the
// result of cublasLtGetCudartVersion: 13000.
absl::Status CheckFitsDriver(const DriverApi& driver, int64_t cudart);

}  // namespace lockstep::cuda
