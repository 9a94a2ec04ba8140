// The fake cuDNN (libcudnn.so.9 of this folder, opened and called like NVIDIA's). It keeps descriptors of the graph
// API, and computes convolutions and their gradients in the host's memory, in the order of a stream of the fake driver,
// as the vendor's documentation defines the descriptors. A call that the documentation forbids returns an error and
// prints the reason to stderr. Any thread may call it; there is one per process.

#pragma once

#include <chrono>
#include <cstdint>
#include <string>
#include <vector>

#include "backends/cuda/cudnn.h"

namespace lockstep::cuda {

// An engine that the heuristics return for every operation. An engine that is nondeterministic, narrows its operands,
// adds in a narrower type, or uses Winograd's or Fourier's algorithm gives numbers that are far off. One with tensor
// cores multiplies f32 in TF32. It takes channels-last tensors only as NVIDIA documents: all three have this layout,
// the channels of each group fill units of 16 bytes, and addresses are aligned to 16 bytes.
struct FakeEngine {
  int64_t index = 0;
  std::vector<cudnnBackendNumericalNote_t> notes;
  int64_t workspace = 4096;           // required bytes
  bool takes = true;                  // false: no plan of it can be finalized
  std::chrono::microseconds time{0};  // duration as the events of its stream measure it
};

class FakeCudnn {
 public:
  // The operations since the last call of this function, in order, such as "convolution forward x[2,3,8,8] w[4,3,3,3]
  // y[2,4,8,8], padding [1,1]+[1,1], stride [1,1], dilation [1,1], f32, engine 3", or "f32 channels-last, engine 7".
  virtual std::vector<std::string> TakeCalls() = 0;
  // The wrong calls since the last call of this function.
  virtual std::vector<std::string> TakeMisuse() = 0;
  // Sets the engines that the heuristics of `mode` return from now on, the best first. At first mode A has one engine
  // of each kind that must not be used, then one with tensor cores and a plain one; the other modes have a plain one.
  virtual void SetEngines(cudnnBackendHeurMode_t mode, std::vector<FakeEngine> engines) = 0;
  // The same, only for callers whose context is of this GPU, as if only they found all parts of the library.
  virtual void SetEnginesOf(int gpu, cudnnBackendHeurMode_t mode, std::vector<FakeEngine> engines) = 0;
  virtual void ResetEngines() = 0;
  // The number of descriptors and handles that were created and not destroyed.
  virtual int64_t live() const = 0;
  // The numbers of handles created and of plans finalized since the library was opened.
  virtual int64_t handles_made() const = 0;
  virtual int64_t plans_made() const = 0;

 protected:
  ~FakeCudnn() = default;
};

// The symbol by which a library returns its FakeCudnn.
using GetFakeCudnn = FakeCudnn* (*)();
inline constexpr char kGetFakeCudnn[] = "lockstep_fake_cudnn";

}  // namespace lockstep::cuda
