// The functions, types and constants of cuBLASLt (libcublasLt.so.13 or .12) that this project uses for matrix products,
// declared here so that a build needs nothing from NVIDIA; `make cuda-abi` compares every line with the vendor's
// cublasLt.h. runtime/cuda/table.h describes the lists. Names are the vendor's, whose documentation explains them; a
// function is called without its prefix: cublasLtMatmul is api.Matmul. Used by the emitters of this backend. The table
// is constant once loaded; any thread may call its functions.

#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <optional>
#include <string_view>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "runtime/cuda/driver.h"
#include "runtime/cuda/library.h"
#include "runtime/cuda/library_search.h"
#include "runtime/cuda/table.h"

namespace lockstep::cuda {

using cublasLtHandle_t = struct cublasLtContext*;
using cublasLtMatmulDesc_t = struct cublasLtMatmulDescOpaque_t*;
using cublasLtMatrixLayout_t = struct cublasLtMatrixLayoutOpaque_t*;
using cublasLtMatmulPreference_t = struct cublasLtMatmulPreferenceOpaque_t*;

#define LOCKSTEP_CUBLAS_STATUSES(V)     \
  V(CUBLAS_STATUS_SUCCESS, 0)           \
  V(CUBLAS_STATUS_NOT_INITIALIZED, 1)   \
  V(CUBLAS_STATUS_ALLOC_FAILED, 3)      \
  V(CUBLAS_STATUS_INVALID_VALUE, 7)     \
  V(CUBLAS_STATUS_ARCH_MISMATCH, 8)     \
  V(CUBLAS_STATUS_MAPPING_ERROR, 11)    \
  V(CUBLAS_STATUS_EXECUTION_FAILED, 13) \
  V(CUBLAS_STATUS_INTERNAL_ERROR, 14)   \
  V(CUBLAS_STATUS_NOT_SUPPORTED, 15)

#define LOCKSTEP_CUBLAS_OPERATIONS(V) \
  V(CUBLAS_OP_N, 0)                   \
  V(CUBLAS_OP_T, 1)

#define LOCKSTEP_CUBLAS_COMPUTE_TYPES(V) \
  V(CUBLAS_COMPUTE_16F, 64)              \
  V(CUBLAS_COMPUTE_32F, 68)              \
  V(CUBLAS_COMPUTE_32F_PEDANTIC, 69)     \
  V(CUBLAS_COMPUTE_32F_FAST_16BF, 75)    \
  V(CUBLAS_COMPUTE_32F_FAST_TF32, 77)    \
  V(CUBLAS_COMPUTE_64F, 70)              \
  V(CUBLAS_COMPUTE_32I, 72)

#define LOCKSTEP_CUDA_DATA_TYPES(V) \
  V(CUDA_R_32F, 0)                  \
  V(CUDA_R_64F, 1)                  \
  V(CUDA_R_16F, 2)                  \
  V(CUDA_R_8I, 3)                   \
  V(CUDA_R_32I, 10)                 \
  V(CUDA_R_16BF, 14)

#define LOCKSTEP_CUBLASLT_POINTER_MODES(V) \
  V(CUBLASLT_POINTER_MODE_HOST, 0)         \
  V(CUBLASLT_POINTER_MODE_DEVICE, 1)

#define LOCKSTEP_CUBLASLT_ORDERS(V) \
  V(CUBLASLT_ORDER_COL, 0)          \
  V(CUBLASLT_ORDER_ROW, 1)

#define LOCKSTEP_CUBLASLT_LAYOUT_ATTRIBUTES(V) \
  V(CUBLASLT_MATRIX_LAYOUT_TYPE, 0)            \
  V(CUBLASLT_MATRIX_LAYOUT_ORDER, 1)           \
  V(CUBLASLT_MATRIX_LAYOUT_ROWS, 2)            \
  V(CUBLASLT_MATRIX_LAYOUT_COLS, 3)            \
  V(CUBLASLT_MATRIX_LAYOUT_LD, 4)              \
  V(CUBLASLT_MATRIX_LAYOUT_BATCH_COUNT, 5)     \
  V(CUBLASLT_MATRIX_LAYOUT_STRIDED_BATCH_OFFSET, 6)

#define LOCKSTEP_CUBLASLT_MATMUL_ATTRIBUTES(V)          \
  V(CUBLASLT_MATMUL_DESC_COMPUTE_TYPE, 0)               \
  V(CUBLASLT_MATMUL_DESC_SCALE_TYPE, 1)                 \
  V(CUBLASLT_MATMUL_DESC_POINTER_MODE, 2)               \
  V(CUBLASLT_MATMUL_DESC_TRANSA, 3)                     \
  V(CUBLASLT_MATMUL_DESC_TRANSB, 4)                     \
  V(CUBLASLT_MATMUL_DESC_EPILOGUE, 7)                   \
  V(CUBLASLT_MATMUL_DESC_BIAS_POINTER, 8)               \
  V(CUBLASLT_MATMUL_DESC_BIAS_BATCH_STRIDE, 10)         \
  V(CUBLASLT_MATMUL_DESC_EPILOGUE_AUX_POINTER, 11)      \
  V(CUBLASLT_MATMUL_DESC_EPILOGUE_AUX_LD, 12)           \
  V(CUBLASLT_MATMUL_DESC_EPILOGUE_AUX_BATCH_STRIDE, 13) \
  V(CUBLASLT_MATMUL_DESC_EPILOGUE_AUX_DATA_TYPE, 22)    \
  V(CUBLASLT_MATMUL_DESC_BIAS_DATA_TYPE, 26)

#define LOCKSTEP_CUBLASLT_EPILOGUES(V)    \
  V(CUBLASLT_EPILOGUE_DEFAULT, 1)         \
  V(CUBLASLT_EPILOGUE_RELU, 2)            \
  V(CUBLASLT_EPILOGUE_RELU_AUX, 130)      \
  V(CUBLASLT_EPILOGUE_BIAS, 4)            \
  V(CUBLASLT_EPILOGUE_RELU_BIAS, 6)       \
  V(CUBLASLT_EPILOGUE_RELU_AUX_BIAS, 134) \
  V(CUBLASLT_EPILOGUE_DRELU, 136)         \
  V(CUBLASLT_EPILOGUE_DRELU_BGRAD, 152)   \
  V(CUBLASLT_EPILOGUE_GELU, 32)           \
  V(CUBLASLT_EPILOGUE_GELU_AUX, 160)      \
  V(CUBLASLT_EPILOGUE_GELU_BIAS, 36)      \
  V(CUBLASLT_EPILOGUE_GELU_AUX_BIAS, 164) \
  V(CUBLASLT_EPILOGUE_DGELU, 192)         \
  V(CUBLASLT_EPILOGUE_DGELU_BGRAD, 208)   \
  V(CUBLASLT_EPILOGUE_BGRADA, 256)        \
  V(CUBLASLT_EPILOGUE_BGRADB, 512)

#define LOCKSTEP_CUBLASLT_PREFERENCES(V)           \
  V(CUBLASLT_MATMUL_PREF_SEARCH_MODE, 0)           \
  V(CUBLASLT_MATMUL_PREF_MAX_WORKSPACE_BYTES, 1)   \
  V(CUBLASLT_MATMUL_PREF_REDUCTION_SCHEME_MASK, 3) \
  V(CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_A_BYTES, 5) \
  V(CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_B_BYTES, 6) \
  V(CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_C_BYTES, 7) \
  V(CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_D_BYTES, 8)

// The ways to add the parts of a product that is split along its inner dimension: bits of a mask.
#define LOCKSTEP_CUBLASLT_REDUCTION_SCHEMES(V) \
  V(CUBLASLT_REDUCTION_SCHEME_NONE, 0)         \
  V(CUBLASLT_REDUCTION_SCHEME_INPLACE, 1)      \
  V(CUBLASLT_REDUCTION_SCHEME_COMPUTE_TYPE, 2) \
  V(CUBLASLT_REDUCTION_SCHEME_OUTPUT_TYPE, 4)  \
  V(CUBLASLT_REDUCTION_SCHEME_MASK, 7)

#define LOCKSTEP_CUBLASLT_ENUMS(E)                                        \
  E(cublasStatus_t, LOCKSTEP_CUBLAS_STATUSES)                             \
  E(cublasOperation_t, LOCKSTEP_CUBLAS_OPERATIONS)                        \
  E(cublasComputeType_t, LOCKSTEP_CUBLAS_COMPUTE_TYPES)                   \
  E(cudaDataType_t, LOCKSTEP_CUDA_DATA_TYPES)                             \
  E(cublasLtPointerMode_t, LOCKSTEP_CUBLASLT_POINTER_MODES)               \
  E(cublasLtOrder_t, LOCKSTEP_CUBLASLT_ORDERS)                            \
  E(cublasLtMatrixLayoutAttribute_t, LOCKSTEP_CUBLASLT_LAYOUT_ATTRIBUTES) \
  E(cublasLtMatmulDescAttributes_t, LOCKSTEP_CUBLASLT_MATMUL_ATTRIBUTES)  \
  E(cublasLtEpilogue_t, LOCKSTEP_CUBLASLT_EPILOGUES)                      \
  E(cublasLtMatmulPreferenceAttributes_t, LOCKSTEP_CUBLASLT_PREFERENCES)  \
  E(cublasLtReductionScheme_t, LOCKSTEP_CUBLASLT_REDUCTION_SCHEMES)

LOCKSTEP_CUBLASLT_ENUMS(LOCKSTEP_CUDA_ENUM)

// An algorithm with its configuration, as bytes that may be stored and reused with the same version of the library.
using CublasLtAlgoWords = std::array<uint64_t, 8>;
#define LOCKSTEP_CUBLASLT_ALGO(M) M(CublasLtAlgoWords, data, {})
struct cublasLtMatmulAlgo_t {
  LOCKSTEP_CUBLASLT_ALGO(LOCKSTEP_CUDA_MEMBER)
};

using CublasLtReserved = std::array<int, 4>;
// clang-format off
#define LOCKSTEP_CUBLASLT_HEURISTIC_RESULT(M) \
  M(cublasLtMatmulAlgo_t, algo, {}) \
  M(size_t, workspaceSize, 0) \
  M(cublasStatus_t, state, {}) \
  M(float, wavesCount, 0) \
  M(CublasLtReserved, reserved, {})
// clang-format on
struct cublasLtMatmulHeuristicResult_t {
  LOCKSTEP_CUBLASLT_HEURISTIC_RESULT(LOCKSTEP_CUDA_MEMBER)
};

#define LOCKSTEP_CUBLASLT_FUNCTIONS(F)                                                                             \
  F(size_t, GetVersion, "cublasLtGetVersion", ())                                                                  \
  F(size_t, GetCudartVersion, "cublasLtGetCudartVersion", ())                                                      \
  F(const char*, GetStatusName, "cublasLtGetStatusName", (cublasStatus_t status))                                  \
  F(const char*, GetStatusString, "cublasLtGetStatusString", (cublasStatus_t status))                              \
  F(cublasStatus_t, Create, "cublasLtCreate", (cublasLtHandle_t * handle))                                         \
  F(cublasStatus_t, Destroy, "cublasLtDestroy", (cublasLtHandle_t handle))                                         \
  F(cublasStatus_t, MatmulDescCreate, "cublasLtMatmulDescCreate",                                                  \
    (cublasLtMatmulDesc_t * desc, cublasComputeType_t compute, cudaDataType_t scale))                              \
  F(cublasStatus_t, MatmulDescDestroy, "cublasLtMatmulDescDestroy", (cublasLtMatmulDesc_t desc))                   \
  F(cublasStatus_t, MatmulDescSetAttribute, "cublasLtMatmulDescSetAttribute",                                      \
    (cublasLtMatmulDesc_t desc, cublasLtMatmulDescAttributes_t attribute, const void* value, size_t bytes))        \
  F(cublasStatus_t, MatrixLayoutCreate, "cublasLtMatrixLayoutCreate",                                              \
    (cublasLtMatrixLayout_t * layout, cudaDataType_t type, uint64_t rows, uint64_t columns, int64_t leading))      \
  F(cublasStatus_t, MatrixLayoutDestroy, "cublasLtMatrixLayoutDestroy", (cublasLtMatrixLayout_t layout))           \
  F(cublasStatus_t, MatrixLayoutSetAttribute, "cublasLtMatrixLayoutSetAttribute",                                  \
    (cublasLtMatrixLayout_t layout, cublasLtMatrixLayoutAttribute_t attribute, const void* value, size_t bytes))   \
  F(cublasStatus_t, MatmulPreferenceCreate, "cublasLtMatmulPreferenceCreate",                                      \
    (cublasLtMatmulPreference_t * preference))                                                                     \
  F(cublasStatus_t, MatmulPreferenceDestroy, "cublasLtMatmulPreferenceDestroy",                                    \
    (cublasLtMatmulPreference_t preference))                                                                       \
  F(cublasStatus_t, MatmulPreferenceSetAttribute, "cublasLtMatmulPreferenceSetAttribute",                          \
    (cublasLtMatmulPreference_t preference, cublasLtMatmulPreferenceAttributes_t attribute, const void* value,     \
     size_t bytes))                                                                                                \
  F(cublasStatus_t, MatmulAlgoGetHeuristic, "cublasLtMatmulAlgoGetHeuristic",                                      \
    (cublasLtHandle_t handle, cublasLtMatmulDesc_t desc, cublasLtMatrixLayout_t a, cublasLtMatrixLayout_t b,       \
     cublasLtMatrixLayout_t c, cublasLtMatrixLayout_t d, cublasLtMatmulPreference_t preference, int requested,     \
     cublasLtMatmulHeuristicResult_t* results, int* returned))                                                     \
  F(cublasStatus_t, MatmulAlgoCheck, "cublasLtMatmulAlgoCheck",                                                    \
    (cublasLtHandle_t handle, cublasLtMatmulDesc_t desc, cublasLtMatrixLayout_t a, cublasLtMatrixLayout_t b,       \
     cublasLtMatrixLayout_t c, cublasLtMatrixLayout_t d, const cublasLtMatmulAlgo_t* algo,                         \
     cublasLtMatmulHeuristicResult_t* result))                                                                     \
  F(cublasStatus_t, Matmul, "cublasLtMatmul",                                                                      \
    (cublasLtHandle_t handle, cublasLtMatmulDesc_t desc, const void* alpha, const void* a_data,                    \
     cublasLtMatrixLayout_t a, const void* b_data, cublasLtMatrixLayout_t b, const void* beta, const void* c_data, \
     cublasLtMatrixLayout_t c, void* d_data, cublasLtMatrixLayout_t d, const cublasLtMatmulAlgo_t* algo,           \
     void* workspace, size_t workspace_bytes, CUstream stream))

struct CublasLtApi {
  LoadedFrom from;
  LOCKSTEP_CUBLASLT_FUNCTIONS(LOCKSTEP_CUDA_POINTER)

  // Returns OK if `status` is CUBLAS_STATUS_SUCCESS. Otherwise returns an error that names `call` ("cublasLtMatmul"),
  // the status and the library's text for it: Unimplemented for CUBLAS_STATUS_NOT_SUPPORTED, else Internal.
  absl::Status Check(cublasStatus_t status, std::string_view call) const;
};

// The library to search for: libcublasLt.so.13 or .12.
const LibrarySpec& CublasLtSpec();

// Returns the table of the first suitable cuBLASLt in `places`, or the error of FindLibrary
// (runtime/cuda/library_search.h) if there is none. A library for a later CUDA than `driver` supports is not suitable;
// a null driver allows any. The functions stay valid for the life of the process.
absl::StatusOr<CublasLtApi> FindCublasLt(const SearchPlaces& places, const DriverApi* driver);

// Returns the table that this process uses. The first call searches the process's own places, for its own driver.
// Returns an error if there is no driver.
absl::StatusOr<const CublasLtApi*> CublasLt();

}  // namespace lockstep::cuda
