#include "backends/cuda/product.h"

#include <array>
#include <string>

#include "core/check.h"

namespace lockstep::cuda {

Product::~Product() {
  if (desc_ == nullptr) return;  // the first descriptor that Open creates
  const CublasLtApi& api = library_->api();
  (void)api.MatmulDescDestroy(desc_);
  for (cublasLtMatrixLayout_t layout : {first_, second_, result_}) {
    if (layout != nullptr) (void)api.MatrixLayoutDestroy(layout);
  }
}

absl::Status Product::SetAttribute(cublasLtMatmulDescAttributes_t attribute, const void* value, size_t bytes,
                                   const char* what) {
  const CublasLtApi& api = library_->api();
  return api.Check(api.MatmulDescSetAttribute(desc_, attribute, value, bytes),
                   std::string("cublasLtMatmulDescSetAttribute of ") + what);
}

absl::Status Product::Open() {
  const CublasLtApi& api = library_->api();
  RETURN_IF_ERROR(
      api.Check(api.MatmulDescCreate(&desc_, problem_.compute, problem_.scale), "cublasLtMatmulDescCreate"));
  const int32_t first = problem_.first.transpose ? CUBLAS_OP_T : CUBLAS_OP_N;
  const int32_t second = problem_.second.transpose ? CUBLAS_OP_T : CUBLAS_OP_N;
  RETURN_IF_ERROR(SetAttribute(CUBLASLT_MATMUL_DESC_TRANSA, &first, sizeof(first), "A's transposition"));
  RETURN_IF_ERROR(SetAttribute(CUBLASLT_MATMUL_DESC_TRANSB, &second, sizeof(second), "B's transposition"));
  ASSIGN_OR_RETURN(first_, Layout(problem_.first, problem_.type));
  ASSIGN_OR_RETURN(second_, Layout(problem_.second, problem_.type));
  ASSIGN_OR_RETURN(result_, Layout(problem_.result, problem_.result_type));
  if (problem_.epilogue == CUBLASLT_EPILOGUE_DEFAULT) return absl::OkStatus();
  const int32_t epilogue = problem_.epilogue;
  RETURN_IF_ERROR(SetAttribute(CUBLASLT_MATMUL_DESC_EPILOGUE, &epilogue, sizeof(epilogue), "the epilogue"));
  if (!problem_.has_bias()) return absl::OkStatus();
  // There is no bias yet, only an address with the right alignment: the heuristics use nothing else of it.
  const auto aligned = reinterpret_cast<const void*>(static_cast<uintptr_t>(problem_.alignment));
  return SetAttribute(CUBLASLT_MATMUL_DESC_BIAS_POINTER, &aligned, sizeof(aligned), "the bias");
}

absl::StatusOr<cublasLtMatrixLayout_t> Product::Layout(const MatMulProblem::Operand& operand,
                                                       cudaDataType_t type) const {
  const CublasLtApi& api = library_->api();
  cublasLtMatrixLayout_t layout = nullptr;
  const auto rows = static_cast<uint64_t>(operand.rows), columns = static_cast<uint64_t>(operand.columns);
  RETURN_IF_ERROR(
      api.Check(api.MatrixLayoutCreate(&layout, type, rows, columns, operand.rows), "cublasLtMatrixLayoutCreate"));
  if (problem_.batch == 1) return layout;
  const auto batch = static_cast<int32_t>(problem_.batch);
  const int64_t stride = operand.rows * operand.columns;
  const auto set = [&](cublasLtMatrixLayoutAttribute_t attribute, const void* value, size_t bytes) {
    return api.Check(api.MatrixLayoutSetAttribute(layout, attribute, value, bytes), "cublasLtMatrixLayoutSetAttribute");
  };
  absl::Status status = set(CUBLASLT_MATRIX_LAYOUT_BATCH_COUNT, &batch, sizeof(batch));
  status.Update(set(CUBLASLT_MATRIX_LAYOUT_STRIDED_BATCH_OFFSET, &stride, sizeof(stride)));
  if (status.ok()) return layout;
  (void)api.MatrixLayoutDestroy(layout);
  return status;
}

absl::Status Product::SetPreferences(cublasLtMatmulPreference_t preference) const {
  const CublasLtApi& api = library_->api();
  const auto set = [&](cublasLtMatmulPreferenceAttributes_t attribute, const auto& value) {
    return api.Check(api.MatmulPreferenceSetAttribute(preference, attribute, &value, sizeof(value)),
                     "cublasLtMatmulPreferenceSetAttribute");
  };
  RETURN_IF_ERROR(set(CUBLASLT_MATMUL_PREF_MAX_WORKSPACE_BYTES, workspace_));
  RETURN_IF_ERROR(set(CUBLASLT_MATMUL_PREF_REDUCTION_SCHEME_MASK, problem_.ReductionSchemes()));
  for (cublasLtMatmulPreferenceAttributes_t matrix :
       {CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_A_BYTES, CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_B_BYTES,
        CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_C_BYTES, CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_D_BYTES}) {
    RETURN_IF_ERROR(set(matrix, problem_.alignment));
  }
  return absl::OkStatus();
}

absl::StatusOr<std::vector<cublasLtMatmulAlgo_t>> Product::Candidates(int most) const {
  const CublasLtApi& api = library_->api();
  cublasLtMatmulPreference_t preference = nullptr;
  RETURN_IF_ERROR(api.Check(api.MatmulPreferenceCreate(&preference), "cublasLtMatmulPreferenceCreate"));
  absl::Status status = SetPreferences(preference);
  std::vector<cublasLtMatmulHeuristicResult_t> found(static_cast<size_t>(most));
  int count = 0;
  if (status.ok()) {
    status = api.Check(api.MatmulAlgoGetHeuristic(library_->handle(), desc_, first_, second_, result_, result_,
                                                  preference, most, found.data(), &count),
                       "cublasLtMatmulAlgoGetHeuristic for " + problem_.ToString());
  }
  (void)api.MatmulPreferenceDestroy(preference);
  RETURN_IF_ERROR(status);
  std::vector<cublasLtMatmulAlgo_t> candidates;
  for (size_t i = 0; i < static_cast<size_t>(count); ++i) {
    if (found[i].state == CUBLAS_STATUS_SUCCESS && found[i].workspaceSize <= workspace_) {
      candidates.push_back(found[i].algo);
    }
  }
  if (candidates.empty()) {
    return Unimplemented() << "cublasLtMatmulAlgoGetHeuristic has no algorithm for " << problem_.ToString();
  }
  return candidates;
}

absl::Status Product::Check(const cublasLtMatmulAlgo_t& algorithm) const {
  const CublasLtApi& api = library_->api();
  cublasLtMatmulHeuristicResult_t result;
  RETURN_IF_ERROR(
      api.Check(api.MatmulAlgoCheck(library_->handle(), desc_, first_, second_, result_, result_, &algorithm, &result),
                "cublasLtMatmulAlgoCheck for " + problem_.ToString()));
  if (result.workspaceSize <= workspace_) return absl::OkStatus();
  return Unimplemented() << "an algorithm for " << problem_.ToString() << " needs a workspace of "
                         << result.workspaceSize << " bytes, but has " << workspace_;
}

absl::Status Product::Run(CudaStream& stream, const ProductOperands& operands, const cublasLtMatmulAlgo_t& algorithm) {
  if (operands.bias != nullptr) {
    RETURN_IF_ERROR(SetAttribute(CUBLASLT_MATMUL_DESC_BIAS_POINTER, &operands.bias, sizeof(operands.bias), "the bias"));
  }
  CudaDevice& device = stream.device();
  RETURN_IF_ERROR(device.WaitForQueueSpace());
  const CublasLtApi& api = library_->api();
  const double one = 1, zero = 0;
  const float one_f32 = 1, zero_f32 = 0;
  const bool wide = problem_.scale == CUDA_R_64F;
  const void* alpha = wide ? static_cast<const void*>(&one) : &one_f32;
  const void* beta = wide ? static_cast<const void*>(&zero) : &zero_f32;
  return device.CheckLibrary(
      api.Check(api.Matmul(library_->handle(), desc_, alpha, operands.first, first_, operands.second, second_, beta,
                           operands.result, result_, operands.result, result_, &algorithm, operands.workspace,
                           workspace_, stream.handle()),
                "cublasLtMatmul of " + problem_.ToString()));
}

absl::Status Product::Run(CudaStream& stream, const ProductOperands& operands) {
  LOCKSTEP_CHECK(is_chosen_) << problem_.ToString() << " runs in a program that was not prepared";
  return Run(stream, operands, chosen_);
}

}  // namespace lockstep::cuda
