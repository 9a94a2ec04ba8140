#include "backends/cpu/block_products.h"

#include "oneapi/dnnl/dnnl.h"

namespace lockstep::cpu {

void BlockProducts::Multiply(int64_t m, int64_t n, int64_t k, float alpha, Block<float> a, Block<float> b, bool add,
                             float* y, int64_t y_row) {
  const dnnl_status_t status = dnnl_sgemm(a.transposed ? 'T' : 'N', b.transposed ? 'T' : 'N', m, n, k, alpha, a.data,
                                          a.row, b.data, b.row, add ? 1.0F : 0.0F, y, y_row);
  if (status != dnnl_success) failure_ = status;
}

void BlockProducts::Multiply(int64_t m, int64_t n, int64_t k, double alpha, Block<double> a, Block<double> b, bool add,
                             double* y, int64_t y_row) {
  for (int64_t i = 0; i < m; ++i) {
    for (int64_t j = 0; j < n; ++j) {
      double sum = 0;
      for (int64_t l = 0; l < k; ++l) {
        sum +=
            a.data[a.transposed ? l * a.row + i : i * a.row + l] * b.data[b.transposed ? j * b.row + l : l * b.row + j];
      }
      y[i * y_row + j] = (add ? y[i * y_row + j] : 0) + alpha * sum;
    }
  }
}

absl::Status BlockProducts::status() const {
  if (failure_ == dnnl_success) return absl::OkStatus();
  return ErrorStream(absl::StatusCode::kInternal)
         << "oneDNN's product of blocks failed with status " << failure_.load();
}

}  // namespace lockstep::cpu
