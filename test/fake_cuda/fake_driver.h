// The interface through which a test controls the fake CUDA driver (libcuda.so.1 of this folder, opened and called like
// NVIDIA's). Its GPUs' memory is in the host's memory, at addresses that the host cannot access, and its streams are
// threads that run late and not in step. A call that CUDA forbids returns an error and prints the reason to stderr. The
// use of a destroyed stream, event, module, function or graph, which NVIDIA's driver need not survive, ends the
// process. Any thread may call it. There is one fake per process, so the tests of a process run one after the other.
//
// Kernels: cuModuleLoadDataEx takes PTX, whose kernels do nothing when launched, or an image
//
//   "lockstep-fake-kernels\n<name> <address of a FakeKernel, hexadecimal> <bytes of each parameter>...\n..."
//
// whose kernels are host functions, each called once per launch, in the order of its stream. Refused are PTX of a newer
// version than the driver's, PTX of a kernel with more than 48 KiB of shared memory, and launches with more.

#pragma once

#include <array>
#include <chrono>
#include <cstddef>
#include <cstdint>
#include <functional>
#include <string>
#include <string_view>
#include <vector>

#include "runtime/cuda/driver.h"

namespace lockstep::cuda {

struct FakeLaunch {
  std::array<unsigned, 3> grid, block;
  unsigned shared_bytes;
  // Returns the host address of bytes of the device. If they are not in one allocation, returns null, and the kernel
  // fails with an illegal address.
  void* (*find)(CUdeviceptr address, size_t bytes);
};
using FakeKernel = void (*)(void** parameters, const FakeLaunch& launch);

class FakeDriver {
 public:
  enum class Pace {
    kRandom,  // each stream pauses at random
    kLazy,    // a stream runs only when a thread synchronizes with it, queries it, or waits for one of its events
  };
  struct Options {
    int gpus = 1;
    size_t bytes = size_t{256} << 20;       // of each GPU
    std::vector<int> multiprocessors = {};  // by GPU; 132 for GPUs without an entry
    int capability = 90;                    // of all GPUs: 9.0
    int version = 13000;                    // of CUDA, which the driver supports: 13.0
    int ptx = 90;                           // the newest version of PTX that the driver reads: 9.0
    Pace pace = Pace::kRandom;
    uint64_t seed = 1;
    uint64_t queue = 1024;  // capacity of a stream: a call that queues more waits in the driver, as in NVIDIA's
    std::chrono::milliseconds compile_time{0};  // duration of cuModuleLoadDataEx in the calling thread
  };

  // Forgets all calls and misuse, and creates new GPUs. No context may be retained.
  virtual void Reset(const Options& options) = 0;

  // In the nth call from now on of `function` ("cuMemAlloc"; the next call is 1), calls `first`, which must not call
  // the driver. If `first` returns an error, the call returns it and does nothing else.
  virtual void OnCall(std::string_view function, int nth, std::function<CUresult()> first) = 0;
  void FailCall(std::string_view function, int nth, CUresult result) {
    OnCall(function, nth, [result] { return result; });
  }
  // Breaks the GPU's context when `stream` reaches this point, like a kernel that accesses an illegal address.
  virtual void BreakIn(CUstream stream, CUresult result) = 0;

  // The calls since Reset, in order, each with its main arguments ("cuMemAlloc 64"), except queries and calls that set
  // or get contexts, devices and errors.
  virtual std::vector<std::string> calls() const = 0;
  // Descriptions of the wrong calls; each was also printed to stderr.
  virtual std::vector<std::string> misuse() const = 0;
  // The number of times that a GPU got a context: for its first device, and again after its release.
  virtual int contexts_made() const = 0;
  // The objects that contexts still had when they were released.
  virtual std::vector<std::string> leaks() const = 0;
  // Kernels that were launched before cuFuncLoad or cuFuncGetAttribute: from CUDA 12.2 on, their first launch loads
  // them.
  virtual std::vector<std::string> lazy_loads() const = 0;
  // The largest number of threads that were in cuModuleLoadDataEx at once.
  virtual int most_loads_at_once() const = 0;
  // The allocated bytes of a GPU.
  virtual size_t used(int gpu) const = 0;
  // The host address of bytes of a GPU; null if they are not in one allocation.
  virtual std::byte* Find(CUdeviceptr address, size_t bytes) const = 0;

  // For the other fake libraries. Enqueue adds their work to a stream, like a kernel; returns true if the stream
  // captures it, and then graphs keep copies of it. IsInGraph returns true while a graph, executable or not, contains
  // captured work of this owner; an open capture and a running launch of a destroyed graph do not count. AwaitIdle
  // waits like cuMemFree for all work queued in the GPU's streams. CurrentGpu is the GPU of the calling thread's
  // context, or -1. NoteMisuse reports misuse of their own.
  virtual bool Enqueue(CUstream stream, std::string what, std::function<CUresult()> work,
                       const void* owner = nullptr) = 0;
  virtual bool IsInGraph(const void* owner) const = 0;
  virtual void AwaitIdle(int gpu) = 0;
  // Makes the work appear to have taken this much longer in the times of the stream's events. Called by work of a
  // stream.
  virtual void Spend(CUstream stream, std::chrono::microseconds time) = 0;
  virtual int CurrentGpu() const = 0;
  virtual void NoteMisuse(const std::string& text) = 0;

 protected:
  ~FakeDriver() = default;
};

// Returns the FakeDriver of a library that was opened by Library::Open; an error if it is a real driver.
using GetFakeDriver = FakeDriver* (*)();
inline constexpr char kGetFakeDriver[] = "lockstep_fake_driver";

}  // namespace lockstep::cuda
