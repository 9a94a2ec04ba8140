// Products of blocks of matrices, for the kernels of attention. Any thread may use them.

#pragma once

#include <atomic>
#include <cstdint>

#include "core/status.h"

namespace lockstep::cpu {

// Multiplies row-major blocks on the calling thread: f32 with oneDNN, f64 with loops. Several threads may use one
// object; its status is read when they are done.
class BlockProducts {
 public:
  // A block: its elements, the distance between rows, and true if it is read transposed.
  template <typename T>
  struct Block {
    const T* data;
    int64_t row;
    bool transposed = false;
  };

  // Computes y = alpha * a [m, k] b [k, n], or adds it to y if `add`. y is [m, n] with rows y_row apart.
  void Multiply(int64_t m, int64_t n, int64_t k, float alpha, Block<float> a, Block<float> b, bool add, float* y,
                int64_t y_row);
  void Multiply(int64_t m, int64_t n, int64_t k, double alpha, Block<double> a, Block<double> b, bool add, double* y,
                int64_t y_row);

  absl::Status status() const;

 private:
  std::atomic<int> failure_ = 0;  // a oneDNN status
};

}  // namespace lockstep::cpu
