// What a backend is: it owns a kind of machine. It describes the one that a program is made for, lowers a graph that
// keeps to that into a Program of kernels over storages, and makes the devices on which they run. Everything else, from
// the pipeline before to buffers, certificate and steps after, is shared (compile.cc). A Backend holds no state between
// calls; any thread may use one. The libraries under it may: an instruction set that is asked for (TargetOptions::isa)
// holds for the whole process from its first compilation on, and another one is then an error.

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

// What the user asks of the machine.
struct TargetOptions {
  int threads = 1;  // of a rank, at least 1; GPUs ignore it
  // What kernels may use, as the backend names it. On CPUs an instruction set ("avx2"); empty: all that the processor
  // has. For GPUs a model or an architecture ("h200", "sm_90"), which need not be there; empty: the GPU of this
  // machine.
  std::string isa;
  bool tf32 = false;  // GPUs may multiply f32 matrices with the significands of TF32: 10 bits
  bool tune = false;  // GPUs' products of matrices take the fastest algorithm, timed when a program is loaded
};

// A GPU as passes and kernels see it: known also where there is none.
struct GpuDescription {
  std::string name;          // "NVIDIA H200"
  std::string architecture;  // "sm_90"
  int capability = 0;        // as a number: 90
  int multiprocessors = 0;
  uint64_t memory_bytes = 0;
  bool tf32 = false;
};

// The machine that one executable is made for: all that passes and lowering ask about it. Plain data, made by
// Backend::MakeTarget; for a GPU that `isa` names it can be made anywhere.
struct Target {
  int threads = 1;
  std::string isa;
  // Whether there is a kernel for the node as it is; the pipeline decomposes the others where it can.
  std::function<bool(const Node&)> supports;
  // Whether a node that takes f16 or bf16 is better computed in f32, between conversions. Empty: none is.
  std::function<bool(const Node&)> prefers_f32;
  passes::FusionOptions fusion;       // which nodes become one loop,
  LoopSizes loops;                    // how a CPU's is cut for vectors, caches and threads,
  GridSizes grid;                     // and a GPU's into blocks of threads
  std::optional<GpuDescription> gpu;  // of a GPU
  bool tune = false;                  // whether kernels are chosen by their time, when a program is loaded
  // The arena of the body of a loop takes at most so many bytes if that can be, by computing values again; 0: any.
  uint64_t body_bytes = 0;
  // Of a program whose ranks compute parts of their own: whose part it is made for.
  std::optional<PlaceOfPart> place;
  // Lines about the processor and the libraries behind the kernels: where two processes have the same, equal programs
  // compute equal bits.
  std::string fingerprint;
};

// A rank's device, and its end of the communicator whose memory is the devices'. Executors of it go before it does.
struct RankDevice {
  RankDevice() = default;
  RankDevice(std::unique_ptr<Device> opened, std::unique_ptr<Communicator> between, Communicator* to_load_with)
      : device(std::move(opened)), of_devices(std::move(between)), communicator(to_load_with) {}
  RankDevice(RankDevice&&) = default;
  // Destroys what this one held in the order of the destructor: the communicator before its device, which it uses to
  // free memory and events. Member by member it would be the device first.
  RankDevice& operator=(RankDevice&& other) noexcept;

  std::unique_ptr<Device> device;
  std::unique_ptr<Communicator> of_devices;  // null where devices use the world's
  Communicator* communicator = nullptr;      // the one to load executables with
};

// The host's, on which ranks talk by `world`.
RankDevice OpenHostDevice(Communicator& world);
// Another one, between which ranks talk by way of the host (runtime/comm/staged.h). `threads_share_it`: other ranks,
// too, which are threads of this process.
RankDevice OpenStagedDevice(std::unique_ptr<Device> device, Communicator& world, bool threads_share_it = false);

class Backend {
 public:
  virtual ~Backend() = default;

  virtual std::string_view name() const = 0;  // "cpu"

  // The machine that `options` ask for, or the one at hand. InvalidArgument for what it does not have.
  virtual absl::StatusOr<Target> MakeTarget(const TargetOptions& options) const = 0;

  // Opens the device on which this rank of `world` runs executables: each rank has its own, also where ranks are
  // threads of one process. All ranks call it; `world` outlives what it returns.
  virtual absl::StatusOr<RankDevice> OpenDevice(Communicator& world) const = 0;

  // One or more instructions for each node, in the graph's order. An op without a kernel is an error that names it.
  // Kernels keep what they need to know of `target`, such as how many threads they were made for.
  virtual absl::StatusOr<Program> Lower(const Graph& graph, const Target& target) const = 0;
};

// The backends that are built in. NotFound lists them.
absl::StatusOr<std::unique_ptr<Backend>> CreateBackend(std::string_view name);

}  // namespace lockstep
