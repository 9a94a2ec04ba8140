// How a test steers the fake CUDA driver (libcuda.so.1 of this folder, which is opened and called as NVIDIA's is): GPUs
// whose memory lies in the host's, at addresses that the host cannot touch, and whose streams are threads that run late
// and out of step. What CUDA forbids is an error, with a text on stderr of what was wrong; the use of a stream, event,
// module, function or graph that was destroyed, which NVIDIA's driver need not survive, ends the process. Any thread
// may call it; the fake is one for the process, so tests of a process take turns.
//
// Kernels: cuModuleLoadDataEx keeps PTX, whose kernels do nothing when launched, and takes an image
//
//   "lockstep-fake-kernels\n<name> <address of a FakeKernel, hexadecimal> <bytes of each parameter>...\n..."
//
// whose kernels are functions of the host, each called once a launch, in the order of its stream.

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
  // Where the host finds bytes of the device. Null, and an illegal address of the kernel, if they are not of one piece
  // of memory that is given out.
  void* (*find)(CUdeviceptr address, size_t bytes);
};
using FakeKernel = void (*)(void** parameters, const FakeLaunch& launch);

class FakeDriver {
 public:
  enum class Pace {
    kRandom,  // each stream rests at random
    kLazy,    // a stream does nothing before somebody synchronizes with it or queries it, or waits for an event of it
  };
  struct Options {
    int gpus = 1;
    size_t bytes = size_t{256} << 20;       // of each
    std::vector<int> multiprocessors = {};  // by GPU; 132 where it has none
    int capability = 90;                    // of all: 9.0
    Pace pace = Pace::kRandom;
    uint64_t seed = 1;
    uint64_t queue = 1024;  // what a stream holds: a call that queues more waits in the driver, as NVIDIA's does
    std::chrono::milliseconds compile_time{0};  // that cuModuleLoadDataEx takes, in the thread that calls it
  };

  // Forgets all calls and misuse, and makes GPUs anew. No context may be retained.
  virtual void Reset(const Options& options) = 0;

  // The nth call from now on of `function` ("cuMemAlloc"), 1 being the next, calls `first`, which calls nothing of the
  // driver, and returns its result, if that is an error, instead of doing anything.
  virtual void OnCall(std::string_view function, int nth, std::function<CUresult()> first) = 0;
  void FailCall(std::string_view function, int nth, CUresult result) {
    OnCall(function, nth, [result] { return result; });
  }
  // The context of a GPU breaks, as by a kernel that touches what it must not, as soon as `stream` comes to this.
  virtual void BreakIn(CUstream stream, CUresult result) = 0;

  // What was called since Reset, in order, each with its main arguments ("cuMemAlloc 64"); but for queries, and what
  // sets or asks for contexts, devices and errors.
  virtual std::vector<std::string> calls() const = 0;
  // What was wrong with the calls; each has been written to stderr, too.
  virtual std::vector<std::string> misuse() const = 0;
  // How often a GPU got a context: by the first device of it, and after its release again.
  virtual int contexts_made() const = 0;
  // What contexts held when they were released.
  virtual std::vector<std::string> leaks() const = 0;
  // Kernels that were launched before cuFuncLoad or cuFuncGetAttribute had seen them: as CUDA 12.2's, which are loaded
  // by their first launch then.
  virtual std::vector<std::string> lazy_loads() const = 0;
  // How many threads have been in cuModuleLoadDataEx at once, at most.
  virtual int most_loads_at_once() const = 0;
  // Bytes that are given out on a GPU.
  virtual size_t used(int gpu) const = 0;
  // Where the host finds bytes of a GPU; null if they are not of one piece of memory that is given out.
  virtual std::byte* Find(CUdeviceptr address, size_t bytes) const = 0;

  // For the other fake libraries: work of theirs in a stream, as a kernel of it, and whether the stream captures it:
  // then graphs keep copies of it; what cuMemFree and its like wait for, all that the GPU's streams hold; the GPU whose
  // context the calling thread has, or -1; and misuse of theirs.
  virtual bool Enqueue(CUstream stream, std::string what, std::function<CUresult()> work) = 0;
  virtual void AwaitIdle(int gpu) = 0;
  // To events of the stream, its work has taken so much longer than it has. Work of a stream calls it.
  virtual void Spend(CUstream stream, std::chrono::microseconds time) = 0;
  virtual int CurrentGpu() const = 0;
  virtual void NoteMisuse(const std::string& text) = 0;

 protected:
  ~FakeDriver() = default;
};

// The one that a library which was opened by Library::Open has; an error if that is a real driver.
using GetFakeDriver = FakeDriver* (*)();
inline constexpr char kGetFakeDriver[] = "lockstep_fake_driver";

}  // namespace lockstep::cuda
