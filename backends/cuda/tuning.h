// Chooses among the ways in which a library solves a problem, a product or a convolution: its first recommendation, or
// the fastest of several, timed on the GPU when the program is loaded. They differ in their bits, so all ranks use the
// choice of rank 0, and a file keeps it for later programs (choice_cache.h). One thread at a time may use it.

#pragma once

#include <functional>
#include <memory>
#include <span>
#include <string>

#include "core/status.h"
#include "runtime/communicator.h"
#include "runtime/cuda/device.h"

namespace lockstep::cuda {

// A problem of a program. Choices are texts without line breaks and tabs.
class Tunable {
 public:
  virtual ~Tunable() = default;

  // Equal for problems with the same choices.
  virtual std::string Key() const = 0;
  // Creates the library's descriptors. Requires that its handle is open. The functions below require that it was
  // called.
  virtual absl::Status Open() = 0;
  // Uses a choice from now on, or the library's first recommendation if it is empty: the same for equal problems on
  // equal GPUs. Returns an error if the library does not support it for this problem on this GPU.
  virtual absl::Status Take(const std::string& choice) = 0;
  // The choice that was taken, for messages.
  virtual std::string taken() const = 0;
  // Times the library's recommendations, on memory of its own, and returns the fastest.
  virtual absl::StatusOr<std::string> Fastest(CudaDevice& device) = 0;
  // Runs once with the choice that was taken, on memory of its own, and waits for it.
  virtual absl::Status RunOnce(CudaDevice& device) = 0;
};

struct TunableOfOp {
  std::shared_ptr<Tunable> problem;
  std::string op;  // the name in messages
};

struct TuneOptions {
  std::string machine;  // the GPU, driver and library, with their versions, for which timings and choices are valid
  std::string cache;    // path of the file; empty: none
};

// Uses the library's first recommendations.
absl::Status TakeFirstChoices(std::span<const TunableOfOp> problems);

// Uses the entries of rank 0's file for the machine if the library still supports them; otherwise times on rank 0's GPU
// and adds the fastest to the file. All ranks must call it with the same problems. Returns an error if a rank's library
// does not support rank 0's choice. Equal problems are timed once.
absl::Status TakeFastest(std::span<const TunableOfOp> problems, const TuneOptions& options, CudaDevice& device,
                         Communicator& communicator);

// Runs each problem once.
absl::Status RunEachOnce(std::span<const TunableOfOp> problems, CudaDevice& device);

// The number of recommendations that are timed.
inline constexpr int kMostTimed = 8;

// Returns the position of the fastest of `count` ways, of which queue(i) queues one. The first is the fastest unless
// another takes at most 0.98 of its time. A way that fails when it is queued is passed over, one that fails on the GPU
// is an error. Returns Unimplemented if none can be queued.
absl::StatusOr<size_t> FastestOf(size_t count, const std::function<absl::Status(size_t)>& queue, CudaDevice& device);

// Memory for a trial: consecutive parts of these sizes, each aligned to 256 bytes and filled with small numbers of any
// float type, because a GPU multiplies zeros with less power, and therefore faster.
class TrialMemory {
 public:
  static absl::StatusOr<TrialMemory> Allocate(std::span<const uint64_t> sizes, const std::string& label,
                                              CudaDevice& device);
  std::byte* part(size_t i) const { return memory_->data() + offsets_[i]; }

 private:
  std::unique_ptr<DeviceMemory> memory_;
  std::vector<uint64_t> offsets_;
};

}  // namespace lockstep::cuda
