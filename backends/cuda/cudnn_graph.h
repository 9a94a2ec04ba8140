// The shared part of emitters that use cuDNN: a handle for all kernels of a program, descriptors that are destroyed
// with their owner, and the choice of an engine for an operation. Created when a program is loaded (preparation.h),
// because that needs a GPU. One thread at a time may use a program's objects.

#pragma once

#include <initializer_list>
#include <memory>
#include <span>
#include <string>
#include <utility>
#include <vector>

#include "backends/cuda/cudnn.h"
#include "backends/cuda/library_handle.h"
#include "core/status.h"
#include "runtime/cuda/device.h"

namespace lockstep::cuda {

using CudnnHandle = LibraryHandle<CudnnApi, cudnnHandle_t, Cudnn>;

// A descriptor of the graph API, whose attributes are set one by one. The first error of a call is kept, later calls do
// nothing, and Finalize returns the error. The API table must outlive it.
class CudnnDescriptor {
 public:
  CudnnDescriptor(const CudnnApi& api, cudnnBackendDescriptorType_t type, std::string what);
  ~CudnnDescriptor();
  CudnnDescriptor(CudnnDescriptor&& other) noexcept
      : api_(other.api_),
        what_(std::move(other.what_)),
        status_(std::move(other.status_)),
        value_(std::exchange(other.value_, nullptr)) {}
  CudnnDescriptor& operator=(CudnnDescriptor&&) = delete;

  // Requires that `T` is the C type of `type`.
  template <typename T>
  CudnnDescriptor& Set(cudnnBackendAttributeName_t name, cudnnBackendAttributeType_t type, std::span<const T> values) {
    return SetBytes(name, type, static_cast<int64_t>(values.size()), values.data());
  }
  template <typename T>
  CudnnDescriptor& Set(cudnnBackendAttributeName_t name, cudnnBackendAttributeType_t type, const T& value) {
    return SetBytes(name, type, 1, &value);
  }
  CudnnDescriptor& Set(cudnnBackendAttributeName_t name, const std::vector<int64_t>& values) {
    return Set(name, CUDNN_TYPE_INT64, std::span<const int64_t>(values));
  }
  CudnnDescriptor& Set(cudnnBackendAttributeName_t name, const CudnnDescriptor& value) {
    return Set(name, CUDNN_TYPE_BACKEND_DESCRIPTOR, value.value_);
  }
  absl::Status Finalize();

  // Writes the elements of the attribute, at most `most`, to `elements`, which must have the C type of `type`. Returns
  // their number.
  absl::StatusOr<int64_t> Get(cudnnBackendAttributeName_t name, cudnnBackendAttributeType_t type, int64_t most,
                              void* elements) const;

  cudnnBackendDescriptor_t value() const { return value_; }

 private:
  CudnnDescriptor& SetBytes(cudnnBackendAttributeName_t name, cudnnBackendAttributeType_t type, int64_t count,
                            const void* elements);

  const CudnnApi& api_;
  std::string what_;  // "the filter", for errors
  absl::Status status_;
  cudnnBackendDescriptor_t value_ = nullptr;
};

// The requirements of an operation on its engine. In addition, no engine may be nondeterministic, accumulate in less
// than the compute type, or spread infinities and NaN to results that do not read them, as Winograd and Fourier engines
// do.
struct EngineRequirements {
  bool tensor_cores = true;      // may be used; they multiply f32 in TF32
  uint64_t workspace_bytes = 0;  // at most
};

// The plan for running one operation.
struct CudnnPlan {
  std::shared_ptr<const CudnnDescriptor> graph;  // and `parts`: what the plan refers to, and the plan last
  std::vector<CudnnDescriptor> parts;
  std::string choice;  // the recommendation, and its engine: "mode A, number 2, engine 3"
  cudnnBackendDescriptor_t plan() const { return parts.back().value(); }
};

// Returns the plans of the first recommendations of the heuristics (mode A, then B, then the fallback) which meet the
// wishes and support `operation`: at most `most`, or only that of `choice` if it is not empty. They are the same on
// equal GPUs with equal libraries if cuDNN finds all its parts: ranks compare their choices (preparation.h). Returns
// Unimplemented, with the engines that were tried, if there is none.
absl::StatusOr<std::vector<CudnnPlan>> PlansFor(const CudnnHandle& cudnn, const CudnnDescriptor& operation,
                                                const EngineRequirements& wishes, size_t most,
                                                const std::string& choice);

// Queues the plan. The tensor with id ids[i] is at `pointers`[i]; tensors and workspace are on the GPU.
absl::Status RunPlan(const CudnnHandle& cudnn, const CudnnPlan& plan, CudaStream& stream, std::span<const int64_t> ids,
                     std::span<void* const> pointers, void* workspace);

}  // namespace lockstep::cuda
