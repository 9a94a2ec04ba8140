// One matrix product as cuBLASLt's descriptors. Made while a graph is lowered, which takes no GPU; opened, and given
// its algorithm, when the program is loaded. One thread at a time.

#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <vector>

#include "backends/cuda/cublaslt.h"
#include "backends/cuda/library_handle.h"
#include "backends/cuda/matmul_problem.h"
#include "core/status.h"
#include "runtime/cuda/device.h"

namespace lockstep::cuda {

using CublasLtHandle = LibraryHandle<CublasLtApi, cublasLtHandle_t, CublasLt>;

// Where its matrices lie on the GPU; first and second as the library has them (MatMulProblem).
struct ProductOperands {
  const void *first, *second, *bias;  // bias: null if the problem has none
  void *result, *workspace;
};

class Product {
 public:
  // `workspace` bytes may an algorithm have.
  Product(const MatMulProblem& problem, uint64_t workspace, std::shared_ptr<CublasLtHandle> library)
      : problem_(problem), workspace_(workspace), library_(std::move(library)) {}
  ~Product();
  Product(const Product&) = delete;
  Product& operator=(const Product&) = delete;

  const MatMulProblem& problem() const { return problem_; }
  uint64_t workspace() const { return workspace_; }

  // Makes the descriptors. The library's handle is open. All that follows requires it.
  absl::Status Open();

  // At most `most` algorithms that the library advises, the best by its own estimate first: the same for equal problems
  // on equal GPUs. Unimplemented if there is none.
  absl::StatusOr<std::vector<cublasLtMatmulAlgo_t>> Candidates(int most) const;

  // OK if the library takes the algorithm for this problem on this GPU, and it needs no larger workspace.
  absl::Status Check(const cublasLtMatmulAlgo_t& algorithm) const;

  // Queues it.
  absl::Status Run(CudaStream& stream, const ProductOperands& operands, const cublasLtMatmulAlgo_t& algorithm);

  // With the algorithm that was chosen, before the first run.
  void Choose(const cublasLtMatmulAlgo_t& algorithm) { chosen_ = algorithm, is_chosen_ = true; }
  absl::Status Run(CudaStream& stream, const ProductOperands& operands);
  const cublasLtMatmulAlgo_t& chosen() const { return chosen_; }

 private:
  absl::Status SetAttribute(cublasLtMatmulDescAttributes_t attribute, const void* value, size_t bytes,
                            const char* what);
  absl::StatusOr<cublasLtMatrixLayout_t> Layout(const MatMulProblem::Operand& operand) const;
  absl::Status SetPreferences(cublasLtMatmulPreference_t preference) const;

  const MatMulProblem problem_;
  const uint64_t workspace_;
  const std::shared_ptr<CublasLtHandle> library_;
  cublasLtMatmulDesc_t desc_ = nullptr;
  cublasLtMatrixLayout_t first_ = nullptr, second_ = nullptr, result_ = nullptr;
  cublasLtMatmulAlgo_t chosen_;
  bool is_chosen_ = false;
};

}  // namespace lockstep::cuda
