// The fake cuBLASLt (libcublasLt.so.13 of this folder, opened and called like NVIDIA's). It multiplies matrices in the
// host's memory, in the order of a stream of the fake driver, as the vendor's documentation defines the descriptors. A
// call that the documentation forbids returns an error and prints the reason to stderr. Any thread may call it.

#pragma once

#include <cstdint>
#include <string>
#include <vector>

namespace lockstep::cuda {

class FakeCublasLt {
 public:
  // The products since the last call of this function, in order, such as "D[32,64] = A[32,128] T x B[128,64] N, f32,
  // compute 32F, 12 matrices, epilogue 1, algorithm 4". Matrices are as the library sees them: column-major, after
  // transposition. The algorithm is left out if it is the first that the heuristics return. Of their algorithms number
  // 4 (the fifth) is the fastest usable one, and its results differ in their last bits. For 16-bit types they return
  // number 6 first, which adds parts of a sum in 16 bits, unless that is forbidden.
  virtual std::vector<std::string> TakeCalls() = 0;

  // The number of handles, descriptors, layouts and preferences that were created and not destroyed.
  virtual int64_t live() const = 0;

  // The next cublasLtCreate fails.
  virtual void FailCreate() = 0;

 protected:
  ~FakeCublasLt() = default;
};

// The symbol by which a library returns its FakeCublasLt.
using GetFakeCublasLt = FakeCublasLt* (*)();
inline constexpr char kGetFakeCublasLt[] = "lockstep_fake_cublaslt";

}  // namespace lockstep::cuda
