// What emitters over cuDNN share: a handle for all kernels of a program, descriptors that are destroyed with their
// owner, and the choice of an engine for an operation. Made when a program is loaded (preparation.h), as that takes a
// GPU. One thread at a time uses a program's.

#pragma once

#include <initializer_list>
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

// A descriptor of the graph API, whose attributes are set one by one. The first error of a call stays, and what follows
// it does nothing: Finalize says what it was. The table outlives it.
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

  // `T` is the C type of `type`.
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

  // The elements of the attribute that there are, `most` at most, into `elements`, which has the C type of `type`.
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

// What an operation asks of the engines that may compute it. None may be nondeterministic, or add in less than the
// compute type, or spread what is not finite over results that do not read it, as Winograd's and Fourier's do.
struct EngineWishes {
  bool tensor_cores = true;      // which multiply f32 in TF32
  uint64_t workspace_bytes = 0;  // at most
};

// How one operation is run.
struct CudnnPlan {
  std::vector<CudnnDescriptor> parts;  // what the plan is made of, itself last
  std::string engine;                  // "engine 3"
  cudnnBackendDescriptor_t plan() const { return parts.back().value(); }
};

// The plan of the first engine that the heuristics name (mode A, then B, then the fallback) which is as wished and
// takes `operation`. The same on equal GPUs with equal libraries, as far as cuDNN finds all parts of them: ranks
// compare what they got (preparation.h). Unimplemented, with what was tried, if there is none.
absl::StatusOr<CudnnPlan> PlanOperation(const CudnnHandle& cudnn, const CudnnDescriptor& operation,
                                        const EngineWishes& wishes);

// Queues the plan. Tensor ids[i] is at `pointers`[i], on the GPU, as the workspace is.
absl::Status RunPlan(const CudnnHandle& cudnn, const CudnnPlan& plan, CudaStream& stream, std::span<const int64_t> ids,
                     std::span<void* const> pointers, void* workspace);

}  // namespace lockstep::cuda
