// The interface of a backend, which supports one kind of machine. A backend describes the machine that a program is
// compiled for, lowers a graph that fits this machine into a Program of kernels over storages, and opens the devices on
// which they run. All other work, from the pipeline before lowering to buffers, certificate and steps after it, is
// shared (compile.cc). A Backend has no state between calls; any thread may use it. The libraries below it may have
// state: a requested instruction set (TargetOptions::isa) holds for the whole process from its first compilation on,
// and a request for another one is then an error.

#pragma once

#include <cstdint>
#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "backends/loops/grid_plan.h"
#include "backends/loops/loop_sizes.h"
#include "backends/planning/own_part.h"
#include "backends/planning/program.h"
#include "core/graph.h"
#include "core/status.h"
#include "passes/optimize/fuse_elementwise.h"
#include "runtime/communicator.h"
#include "runtime/device.h"

namespace lockstep {

// The user's options for the machine.
struct TargetOptions {
  int threads = 1;  // threads of a rank, at least 1; GPUs ignore it
  // The instructions that kernels may use, in the backend's terms. On CPUs: an instruction set ("avx2"), or empty for
  // all that the processor has. For GPUs: a model or an architecture ("h200", "sm_90"), which need not be present, or
  // empty for the GPU of this machine.
  std::string isa;
  bool tf32 = false;  // GPUs may multiply f32 matrices with the significands of TF32: 10 bits
  bool tune = false;  // matrix products of GPUs use the fastest algorithm, found by timing when a program is loaded
};

// The description of a GPU for passes and kernels. It is also known for GPUs that are not present.
struct GpuDescription {
  std::string name;          // "NVIDIA H200"
  std::string architecture;  // "sm_90"
  int capability = 0;        // the architecture as a number: 90
  int multiprocessors = 0;
  uint64_t memory_bytes = 0;
  bool tf32 = false;
  bool slow_f64 = false;             // 1/32 or 1/64 of the operations a second of f32, and not 1/2
  std::optional<Ceilings> ceilings;  // of known models
};

// The machine that an executable is compiled for: all that passes and lowering ask about it. Plain data, made by
// Backend::MakeTarget. If `isa` names a GPU, its target can be made on any machine.
struct Target {
  int threads = 1;
  std::string isa;
  // Returns true if there is a kernel for the node as it is. The pipeline decomposes other nodes where it can.
  std::function<bool(const Node&)> supports;
  // Returns true if a node with f16 or bf16 operands is better computed in f32, between conversions. Empty: no node is.
  std::function<bool(const Node&)> prefers_f32;
  // Returns true if a sum of products in 16 bits without a kernel for its f32 result is rounded to 16 bits. Empty: none
  // is.
  std::function<bool(const Node&)> rounds_sum;
  bool fast_f64 = true;               // sums in f64 take no longer than reading their operands from memory
  passes::FusionOptions fusion;       // the nodes that are fused into one loop
  LoopSizes loops;                    // the sizes by which a loop of a CPU is cut for vectors, caches and threads
  GridSizes grid;                     // the sizes by which a loop of a GPU is cut into blocks of threads
  std::optional<GpuDescription> gpu;  // set if the target is a GPU
  bool tune = false;                  // kernels are chosen by timing when a program is loaded
  // The arena of a loop's body takes at most this many bytes if recomputing values can achieve that; 0: no limit.
  uint64_t body_bytes = 0;
  // Set for programs in which each rank computes its own part: the rank whose part is compiled.
  std::optional<PlaceOfPart> place;
  // Returns what the machine can do at most. A CPU is measured, which takes part of a second.
  std::function<absl::StatusOr<Ceilings>()> ceilings;
  // Lines about the processor and the libraries that kernels use. Processes with equal fingerprints compute equal bits
  // from equal programs.
  std::string fingerprint;
};

// A rank's device, and the rank's end of the communicator for device memory. Must outlive its executors.
struct RankDevice {
  RankDevice() = default;
  RankDevice(std::unique_ptr<Device> opened, std::unique_ptr<Communicator> between, Communicator* to_load_with)
      : device(std::move(opened)), device_communicator(std::move(between)), communicator(to_load_with) {}
  RankDevice(RankDevice&&) = default;
  // Destroys the old members in the order of the destructor: first the communicator, which uses the device to free
  // memory and events, then the device. A member-wise assignment would destroy the device first.
  RankDevice& operator=(RankDevice&& other) noexcept;

  std::unique_ptr<Device> device;
  std::unique_ptr<Communicator>
      device_communicator;               // null if collectives between devices use the world's communicator
  Communicator* communicator = nullptr;  // the communicator to load executables with
};

// Opens the host's device. Its ranks communicate over `world`.
RankDevice OpenHostDevice(Communicator& world);
// Opens another device, whose ranks communicate through host memory (runtime/comm/staged.h). `threads_share_it`: other
// ranks, which are threads of this process, use the device too.
RankDevice OpenStagedDevice(std::unique_ptr<Device> device, Communicator& world, bool threads_share_it = false);

class Backend {
 public:
  virtual ~Backend() = default;

  virtual std::string_view name() const = 0;  // "cpu"

  // Returns the machine that `options` ask for, or this machine. Returns InvalidArgument if the backend does not
  // support what they ask for.
  virtual absl::StatusOr<Target> MakeTarget(const TargetOptions& options) const = 0;

  // Opens the device on which this rank of `world` runs executables. Each rank has its own device, also if ranks are
  // threads of one process. All ranks must call it; `world` must outlive the result.
  virtual absl::StatusOr<RankDevice> OpenDevice(Communicator& world) const = 0;

  // Lowers each node to one or more instructions, in the graph's order. Returns an error that names the op if an op has
  // no kernel. Kernels keep what they need of `target`, such as the number of threads.
  virtual absl::StatusOr<Program> Lower(const Graph& graph, const Target& target) const = 0;
};

// Returns the built-in backend with this name, or NotFound with a list of names.
absl::StatusOr<std::unique_ptr<Backend>> CreateBackend(std::string_view name);

}  // namespace lockstep
