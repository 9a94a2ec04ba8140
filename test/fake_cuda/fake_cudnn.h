// The fake cuDNN (libcudnn.so.9 of this folder, opened and called as NVIDIA's is): it keeps descriptors of the graph
// API, and computes convolutions and their gradients in the host's memory, in the order of a stream of the fake driver,
// by what the descriptors say as the vendor's documentation has it. What that forbids is an error of the call, with a
// text on stderr of what was wrong. Any thread may call it; it is one for the process.

#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "backends/cuda/cudnn.h"

namespace lockstep::cuda {

// An engine, which the heuristics name for every operation. One that is nondeterministic, narrows its operands, adds in
// a narrower type, or is Winograd's or Fourier's gives numbers that are far off; one with tensor cores multiplies f32
// in TF32.
struct FakeEngine {
  int64_t index = 0;
  std::vector<cudnnBackendNumericalNote_t> notes;
  int64_t workspace = 4096;  // bytes that it wants
  bool takes = true;         // else no plan of it finalizes
};

class FakeCudnn {
 public:
  // Each operation since the last time that this was called, in order: "convolution forward x[2,3,8,8] w[4,3,3,3]
  // y[2,4,8,8], padding [1,1]+[1,1], stride [1,1], dilation [1,1], f32, engine 3".
  virtual std::vector<std::string> TakeCalls() = 0;
  // What was wrong with calls since then.
  virtual std::vector<std::string> TakeMisuse() = 0;
  // What the heuristics of `mode` name from now on, the best first. At first: for mode A one engine of each kind that
  // is not to be used, then one of tensor cores and a plain one; a plain one for the others.
  virtual void SetEngines(cudnnBackendHeurMode_t mode, std::vector<FakeEngine> engines) = 0;
  // The same for callers whose context is of this GPU alone, as where only they find all parts of the library.
  virtual void SetEnginesOf(int gpu, cudnnBackendHeurMode_t mode, std::vector<FakeEngine> engines) = 0;
  virtual void ResetEngines() = 0;
  // Descriptors and handles that were made and not destroyed.
  virtual int64_t live() const = 0;
  // Handles that were made, and plans that were made final, since the library was opened.
  virtual int64_t handles_made() const = 0;
  virtual int64_t plans_made() const = 0;

 protected:
  ~FakeCudnn() = default;
};

// The symbol of the one that a library has.
using GetFakeCudnn = FakeCudnn* (*)();
inline constexpr char kGetFakeCudnn[] = "lockstep_fake_cudnn";

}  // namespace lockstep::cuda
