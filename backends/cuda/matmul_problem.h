// A matrix product in cuBLASLt's terms. The library sees matrices column by column; a row-major matrix is then its
// transpose, so that y = a b, row-major, is y' = b' a' to the library: its first operand is our second. Plain values.

#pragma once

#include <cstdint>
#include <string>

#include "backends/cuda/cublaslt.h"
#include "core/graph.h"

namespace lockstep::cuda {

struct MatMulProblem {
  struct Operand {
    int64_t rows = 0, columns = 0;  // as they lie in memory, column by column: the leading dimension is `rows`
    bool transpose = false;
  };
  Operand first, second, result;
  int64_t batch = 1;  // of matrices that lie one after the other
  cudaDataType_t type = CUDA_R_32F;
  cublasComputeType_t compute = CUBLAS_COMPUTE_32F;
  cudaDataType_t scale = CUDA_R_32F;
  cublasLtEpilogue_t epilogue = CUBLASLT_EPILOGUE_DEFAULT;  // what is computed of the product before it is written
  uint32_t alignment = 1;  // bytes, a power of two: of all addresses that it is run with

  // Of a `matmul` node of floats. `tf32`: f32 may be multiplied with the significands of TF32. `alignment` is that of
  // all values; an element is aligned to its size in any case.
  MatMulProblem(const Node& node, bool tf32, uint32_t alignment);

  int64_t inner() const { return first.transpose ? first.rows : first.columns; }
  bool has_bias() const { return (epilogue & CUBLASLT_EPILOGUE_BIAS) != 0; }
  bool has_relu() const { return (epilogue & CUBLASLT_EPILOGUE_RELU) != 0; }
  // How the library may add the parts of a product that it splits along its inner dimension, a mask: never in 16 bits,
  // as it may by default where the result has them. Results of f32 and f64 are as wide as the sum.
  uint32_t ReductionSchemes() const;
  // "12x[64,128]x[128,32] f32 + bias, relu", rows and columns as our op has them.
  std::string ToString() const;
  // All that makes it another problem to the library, in a line: "1x[64,128]x[128,32] f32, b transposed, aligned to
  // 64".
  std::string Key() const;
  // Of all matrices of an operand or of the result.
  uint64_t BytesOf(const Operand& operand) const;
};

}  // namespace lockstep::cuda
