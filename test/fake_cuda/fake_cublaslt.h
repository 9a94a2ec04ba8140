// The fake cuBLASLt (libcublasLt.so.13 of this folder, opened and called as NVIDIA's is): it multiplies matrices in the
// host's memory, in the order of a stream of the fake driver, by what the descriptors say as the vendor's documentation
// has it. What that forbids is an error of the call, with a text on stderr of what was wrong. Any thread may call it.

#pragma once

#include <cstdint>
#include <string>
#include <vector>

namespace lockstep::cuda {

class FakeCublasLt {
 public:
  // Each product since the last time that this was called, in order:
  // "D[32,64] = A[32,128] T x B[128,64] N, f32, compute 32F, 12 matrices, epilogue 1, algorithm 4"; matrices as the
  // library sees them, which is column by column, after they are transposed; the algorithm if it is not the first that
  // the heuristics name. Of those the fifth, number 4, is the fastest that can be used, and has bits of its own. For
  // 16 bits they name number 6 before all others, which adds parts of a sum in 16 bits, unless that is forbidden.
  virtual std::vector<std::string> TakeCalls() = 0;

  // Handles, descriptors, layouts and preferences that were made and not destroyed.
  virtual int64_t live() const = 0;

  // The next cublasLtCreate fails.
  virtual void FailCreate() = 0;

 protected:
  ~FakeCublasLt() = default;
};

// The symbol of the one that a library has.
using GetFakeCublasLt = FakeCublasLt* (*)();
inline constexpr char kGetFakeCublasLt[] = "lockstep_fake_cublaslt";

}  // namespace lockstep::cuda
