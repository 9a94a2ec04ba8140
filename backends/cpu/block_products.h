// Products of blocks of matrices, for the kernels of attention; any thread.

#pragma once

#include <atomic>
#include <cstdint>

#include "core/status.h"

namespace lockstep::cpu {

// Products of row-major blocks, on the calling thread: oneDNN's of f32, loops of f64. Several threads may use one
// object; its status is read when they are done.
class BlockProducts {
 public:
  // A block: its elements, from one row to the next, and whether it is to be taken transposed.
  template <typename T>
  struct Block {
    const T* data;
    int64_t row;
    bool transposed = false;
  };

  // y [m, n], rows y_row apart, becomes alpha * a [m, k] b [k, n], to which itself is added if `add`.
  void Multiply(int64_t m, int64_t n, int64_t k, float alpha, Block<float> a, Block<float> b, bool add, float* y,
                int64_t y_row);
  void Multiply(int64_t m, int64_t n, int64_t k, double alpha, Block<double> a, Block<double> b, bool add, double* y,
                int64_t y_row);

  absl::Status status() const;

 private:
  std::atomic<int> failure_ = 0;  // a status of oneDNN
};

}  // namespace lockstep::cpu
