// One matrix product, as cuBLASLt descriptors. Constructed while a graph is lowered, without a GPU; opened, and given
// its algorithm, when the program is loaded. One thread at a time may use it.

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

// The addresses of its matrices on the GPU; first and second in the library's order (MatMulProblem).
struct ProductOperands {
  const void *first, *second, *bias;  // bias: null if the problem has none
  void *result, *workspace;
};

class Product {
 public:
  // An algorithm may use up to `workspace` bytes.
  Product(const MatMulProblem& problem, uint64_t workspace, std::shared_ptr<CublasLtHandle> library)
      : problem_(problem), workspace_(workspace), library_(std::move(library)) {}
  ~Product();
  Product(const Product&) = delete;
  Product& operator=(const Product&) = delete;

  const MatMulProblem& problem() const { return problem_; }
  uint64_t workspace() const { return workspace_; }

  // Creates the descriptors. Requires that the library's handle is open. All functions below require that Open was
  // called.
  absl::Status Open();

  // Returns at most `most` algorithms that the library recommends, the best by its own estimate first; they are the
  // same for equal problems on equal GPUs. Returns Unimplemented if there is none.
  absl::StatusOr<std::vector<cublasLtMatmulAlgo_t>> Candidates(int most) const;

  // Returns OK if the library supports the algorithm for this problem on this GPU, and its workspace suffices.
  absl::Status Check(const cublasLtMatmulAlgo_t& algorithm) const;

  // Queues the product.
  absl::Status Run(CudaStream& stream, const ProductOperands& operands, const cublasLtMatmulAlgo_t& algorithm);

  // Sets the algorithm for Run(stream, operands), which requires it.
  void Choose(const cublasLtMatmulAlgo_t& algorithm) { chosen_ = algorithm, is_chosen_ = true; }
  absl::Status Run(CudaStream& stream, const ProductOperands& operands);
  const cublasLtMatmulAlgo_t& chosen() const { return chosen_; }

 private:
  absl::Status SetAttribute(cublasLtMatmulDescAttributes_t attribute, const void* value, size_t bytes,
                            const char* what);
  absl::StatusOr<cublasLtMatrixLayout_t> Layout(const MatMulProblem::Operand& operand, cudaDataType_t type) const;
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
