// The functions and types of cuDNN 9 (libcudnn.so.9) that this project uses, which are those of its graph API:
// operations, tensors and plans are descriptors, whose attributes are set one by one. They are declared here so that a
// build needs nothing from NVIDIA; `make cuda-abi` compares every line with the vendor's headers. runtime/cuda/table.h
// describes the lists. Names are the vendor's, whose documentation explains them; a function is called without its
// prefix: cudnnCreate is api.Create. Used by the emitters of this backend. The table is constant once loaded. Any
// thread may call its functions; one thread at a time may use a handle.

#pragma once

#include <cstddef>
#include <cstdint>
#include <string_view>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "backends/cuda/cudnn_constants.h"
#include "runtime/cuda/driver.h"
#include "runtime/cuda/library.h"
#include "runtime/cuda/library_search.h"
#include "runtime/cuda/table.h"

namespace lockstep::cuda {

using cudnnHandle_t = struct cudnnContext*;
using cudnnBackendDescriptor_t = void*;

#define LOCKSTEP_CUDNN_ENUMS(E)                                  \
  E(cudnnStatus_t, LOCKSTEP_CUDNN_STATUSES)                      \
  E(cudnnDataType_t, LOCKSTEP_CUDNN_DATA_TYPES)                  \
  E(cudnnBackendDescriptorType_t, LOCKSTEP_CUDNN_DESCRIPTORS)    \
  E(cudnnBackendAttributeType_t, LOCKSTEP_CUDNN_ATTRIBUTE_TYPES) \
  E(cudnnBackendAttributeName_t, LOCKSTEP_CUDNN_ATTRIBUTES)      \
  E(cudnnConvolutionMode_t, LOCKSTEP_CUDNN_CONVOLUTION_MODES)    \
  E(cudnnResampleMode_t, LOCKSTEP_CUDNN_RESAMPLE_MODES)          \
  E(cudnnPaddingMode_t, LOCKSTEP_CUDNN_PADDING_MODES)            \
  E(cudnnNanPropagation_t, LOCKSTEP_CUDNN_NAN_PROPAGATIONS)      \
  E(cudnnBackendNormMode_t, LOCKSTEP_CUDNN_NORM_MODES)           \
  E(cudnnBackendNormFwdPhase_t, LOCKSTEP_CUDNN_NORM_PHASES)      \
  E(cudnnPointwiseMode_t, LOCKSTEP_CUDNN_POINTWISE_MODES)        \
  E(cudnnReduceTensorOp_t, LOCKSTEP_CUDNN_REDUCTIONS)            \
  E(cudnnBackendHeurMode_t, LOCKSTEP_CUDNN_HEURISTIC_MODES)      \
  E(cudnnBackendNumericalNote_t, LOCKSTEP_CUDNN_NUMERICAL_NOTES) \
  E(cudnnBackendBehaviorNote_t, LOCKSTEP_CUDNN_BEHAVIOR_NOTES)

LOCKSTEP_CUDNN_ENUMS(LOCKSTEP_CUDA_ENUM)

// The type of pooling's window and strides (CUDNN_TYPE_FRACTION).
#define LOCKSTEP_CUDNN_FRACTION(M) M(int64_t, numerator, 0) M(int64_t, denominator, 1)
struct cudnnFraction_t {
  LOCKSTEP_CUDNN_FRACTION(LOCKSTEP_CUDA_MEMBER)
};

#define LOCKSTEP_CUDNN_FUNCTIONS(F)                                                                                  \
  F(size_t, GetVersion, "cudnnGetVersion", ())                                                                       \
  F(size_t, GetCudartVersion, "cudnnGetCudartVersion", ())                                                           \
  F(const char*, GetErrorString, "cudnnGetErrorString", (cudnnStatus_t status))                                      \
  F(void, GetLastErrorString, "cudnnGetLastErrorString", (char* text, size_t bytes))                                 \
  F(cudnnStatus_t, Create, "cudnnCreate", (cudnnHandle_t * handle))                                                  \
  F(cudnnStatus_t, Destroy, "cudnnDestroy", (cudnnHandle_t handle))                                                  \
  F(cudnnStatus_t, SetStream, "cudnnSetStream", (cudnnHandle_t handle, CUstream stream))                             \
  F(cudnnStatus_t, BackendCreateDescriptor, "cudnnBackendCreateDescriptor",                                          \
    (cudnnBackendDescriptorType_t type, cudnnBackendDescriptor_t * descriptor))                                      \
  F(cudnnStatus_t, BackendDestroyDescriptor, "cudnnBackendDestroyDescriptor", (cudnnBackendDescriptor_t descriptor)) \
  F(cudnnStatus_t, BackendFinalize, "cudnnBackendFinalize", (cudnnBackendDescriptor_t descriptor))                   \
  F(cudnnStatus_t, BackendSetAttribute, "cudnnBackendSetAttribute",                                                  \
    (cudnnBackendDescriptor_t descriptor, cudnnBackendAttributeName_t name, cudnnBackendAttributeType_t type,        \
     int64_t count, const void* elements))                                                                           \
  F(cudnnStatus_t, BackendGetAttribute, "cudnnBackendGetAttribute",                                                  \
    (cudnnBackendDescriptor_t descriptor, cudnnBackendAttributeName_t name, cudnnBackendAttributeType_t type,        \
     int64_t requested, int64_t* count, void* elements))                                                             \
  F(cudnnStatus_t, BackendExecute, "cudnnBackendExecute",                                                            \
    (cudnnHandle_t handle, cudnnBackendDescriptor_t plan, cudnnBackendDescriptor_t variant_pack))

struct CudnnApi {
  LoadedFrom from;
  int cuda = 0;      // the CUDA version that it is made for: 13
  LoadedFrom nvrtc;  // compiles some of its engines; no path if it was not found (nvrtc.h)
  LOCKSTEP_CUDNN_FUNCTIONS(LOCKSTEP_CUDA_POINTER)

  // Returns OK if `status` is CUDNN_STATUS_SUCCESS. Otherwise returns an error that names `call` ("cudnnBackendFinalize
  // of the plan"), the status, and cuDNN's text for the last error of this thread: Unimplemented for statuses of the
  // kind CUDNN_STATUS_NOT_SUPPORTED, else Internal.
  absl::Status Check(cudnnStatus_t status, std::string_view call) const;
};

// The library to search for: libcudnn.so.9, 9.10 or later, with the parts of it that the graph API uses.
const LibrarySpec& CudnnSpec();

// Returns the table of the first suitable cuDNN in `places`, or the error of FindLibrary
// (runtime/cuda/library_search.h) if there is none. A library for a later CUDA than `driver` supports is not suitable;
// a null driver allows any. The functions stay valid for the life of the process.
absl::StatusOr<CudnnApi> FindCudnn(const SearchPlaces& places, const DriverApi* driver);

// Returns the table that this process uses. The first call searches the process's own places, for its own driver.
// Returns an error if there is no driver.
absl::StatusOr<const CudnnApi*> Cudnn();

}  // namespace lockstep::cuda
