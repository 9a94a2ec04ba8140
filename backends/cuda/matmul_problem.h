// A matrix product in cuBLASLt's terms. The library uses column-major matrices; a row-major matrix is then its
// transpose, so that y = a b, row-major, is y' = b' a' for the library: its first operand is our second. Plain data.

#pragma once

#include <cstdint>
#include <string>

#include "backends/cuda/cublaslt.h"
#include "core/graph.h"

namespace lockstep::cuda {

struct MatMulProblem {
  struct Operand {
    int64_t rows = 0, columns = 0;  // column-major in memory: the leading dimension is `rows`
    bool transpose = false;
  };
  Operand first, second, result;
  int64_t batch = 1;                        // the number of matrices, which are adjacent in memory
  cudaDataType_t type = CUDA_R_32F;         // of the operands
  cudaDataType_t result_type = CUDA_R_32F;  // `type`, or f32 for operands of 16 bits (wide_result)
  cublasComputeType_t compute = CUBLAS_COMPUTE_32F;
  cudaDataType_t scale = CUDA_R_32F;
  cublasLtEpilogue_t epilogue = CUBLASLT_EPILOGUE_DEFAULT;  // computed on the product before it is written
  uint32_t alignment = 1;                                   // bytes, a power of two: of all addresses in runs

  MatMulProblem() = default;
  // Requires a `matmul` node that SupportsMatMul (emitters.h) accepts. `tf32`: f32 products may use the significands of
  // TF32. `alignment` is that of all values; an element is always aligned to its size.
  MatMulProblem(const Node& node, bool tf32, uint32_t alignment);

  int64_t inner() const { return first.transpose ? first.rows : first.columns; }
  bool has_bias() const { return (epilogue & CUBLASLT_EPILOGUE_BIAS) != 0; }
  bool has_relu() const { return (epilogue & CUBLASLT_EPILOGUE_RELU) != 0; }
  // Returns a mask of ways in which the library may add the parts of a product that it splits along its inner
  // dimension: never in 16 bits, which is the default for 16-bit results. Results of f32 and f64 are as wide as the
  // sum.
  uint32_t ReductionSchemes() const;
  // Returns a text such as "12x[64,128]x[128,32] f32 + bias, relu", with rows and columns as in our op.
  std::string ToString() const;
  // Returns a line with all that distinguishes the problem for the library, such as "1x[64,128]x[128,32] f32, b
  // transposed, aligned to 64".
  std::string Key() const;
  // The size of all matrices of an operand, and of the result.
  uint64_t BytesOf(const Operand& operand) const { return BytesOf(operand, type); }
  uint64_t ResultBytes() const { return BytesOf(result, result_type); }
  uint64_t BiasBytes() const;  // 0 without a bias

 private:
  uint64_t BytesOf(const Operand& operand, cudaDataType_t element) const;
};

}  // namespace lockstep::cuda
