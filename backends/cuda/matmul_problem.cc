#include "backends/cuda/matmul_problem.h"

#include <algorithm>

#include "core/ops/matmul.h"

namespace lockstep::cuda {
namespace {

MatMulProblem::Operand RowMajor(const Shape& shape, bool transpose) {
  const int64_t rank = shape.rank();
  return {.rows = shape[rank - 1], .columns = shape[rank - 2], .transpose = transpose};
}

}  // namespace

MatMulProblem::MatMulProblem(const Node& node, bool tf32, uint32_t alignment) {
  const ops::MatMulForm form(node);
  first = RowMajor(form.b, form.transpose_b);
  second = RowMajor(form.a, form.transpose_a);
  result = RowMajor(form.y, false);
  for (int64_t i = 0; i + 2 < form.y.rank(); ++i) batch *= form.y[i];
  switch (node.operand(0).dtype()) {
    case DType::kF64: type = scale = CUDA_R_64F, compute = CUBLAS_COMPUTE_64F; break;
    case DType::kF16: type = CUDA_R_16F; break;
    case DType::kBF16: type = CUDA_R_16BF; break;
    default:
      type = CUDA_R_32F;
      if (tf32) compute = CUBLAS_COMPUTE_32F_FAST_TF32;
  }
  result_type = node.type().dtype == node.operand(0).dtype() ? type : CUDA_R_32F;
  this->alignment = std::max(alignment, static_cast<uint32_t>(SizeOf(node.operand(0).dtype())));
}

std::string MatMulProblem::ToString() const {
  const auto matrix = [](int64_t rows, int64_t columns) {
    return "[" + std::to_string(rows) + "," + std::to_string(columns) + "]";
  };
  const char* name = type == CUDA_R_64F ? "f64" : type == CUDA_R_16F ? "f16" : type == CUDA_R_16BF ? "bf16" : "f32";
  return std::to_string(batch) + "x" + matrix(result.columns, inner()) + "x" + matrix(inner(), result.rows) + " " +
         name + (result_type != type ? " to f32" : "") + (compute == CUBLAS_COMPUTE_32F_FAST_TF32 ? " in tf32" : "") +
         (has_bias() ? " + bias" : "") + (has_relu() ? ", relu" : "");
}

// A product that is not split has none of these bits, and is always allowed.
uint32_t MatMulProblem::ReductionSchemes() const {
  const bool is_narrow = result_type == CUDA_R_16F || result_type == CUDA_R_16BF;
  return is_narrow ? CUBLASLT_REDUCTION_SCHEME_COMPUTE_TYPE : CUBLASLT_REDUCTION_SCHEME_MASK;
}

// The library's second operand is our first.
std::string MatMulProblem::Key() const {
  return ToString() + (second.transpose ? ", a transposed" : "") + (first.transpose ? ", b transposed" : "") +
         (ReductionSchemes() == CUBLASLT_REDUCTION_SCHEME_COMPUTE_TYPE ? ", parts added in f32" : "") +
         ", aligned to " + std::to_string(alignment);
}

uint64_t MatMulProblem::BytesOf(const Operand& operand, cudaDataType_t element) const {
  const uint64_t bytes = element == CUDA_R_64F ? 8 : element == CUDA_R_32F ? 4 : 2;
  return static_cast<uint64_t>(batch * operand.rows * operand.columns) * bytes;
}

uint64_t MatMulProblem::BiasBytes() const {
  return has_bias() ? ResultBytes() / static_cast<uint64_t>(batch * result.columns) : 0;
}

}  // namespace lockstep::cuda
