// What a backend is: it owns a machine. It says what that machine is and what there are kernels for, lowers a graph
// that keeps to that into a Program of kernels over storages, and makes the devices on which they run. Everything else,
// from the pipeline before to buffers, certificate and steps after, is shared (compile.cc). A Backend holds no state
// between calls; any thread may use one. The libraries under it may: an instruction set that is asked for
// (TargetOptions::isa) holds for the whole process from its first compilation on, and another one is then an error.

#pragma once

#include <cstdint>
#include <memory>
#include <string>
#include <string_view>
#include <vector>

#include "backends/loops/loop_sizes.h"
#include "backends/planning/program.h"
#include "core/graph.h"
#include "core/status.h"
#include "passes/optimize/fuse_elementwise.h"
#include "runtime/device.h"

namespace lockstep {

// What the user asks of the machine.
struct TargetOptions {
  int threads = 1;  // of a rank, at least 1
  std::string
      isa;  // the instruction set that kernels may use, as the backend names it; empty: all that the processor has
};

// The machine that one executable is made for, as far as passes and kernels need to know it. Plain data.
struct Target {
  int threads = 1;
  std::string isa;
  passes::FusionOptions fusion;  // which nodes become one loop,
  LoopSizes loops;               // and how that is cut for vectors, caches and threads
  // Lines about the processor and the libraries behind the kernels: where two processes have the same, equal programs
  // compute equal bits.
  std::string fingerprint;
};

class Backend {
 public:
  virtual ~Backend() = default;

  virtual std::string_view name() const = 0;  // "cpu"

  // The machine at hand, held to `options`. InvalidArgument for what it does not have.
  virtual absl::StatusOr<Target> MakeTarget(const TargetOptions& options) const = 0;

  // The device on which a rank's executables run: one for each rank, also where ranks are threads of one process.
  virtual absl::StatusOr<std::unique_ptr<Device>> MakeDevice() const = 0;

  // Whether there is a kernel for the node as it is; the pipeline decomposes the others where it can.
  virtual bool Supports(const Node& node) const = 0;

  // One or more instructions for each node, in the graph's order. An op without a kernel is an error that names it.
  // Kernels keep what they need to know of `target`, such as how many threads they were made for.
  virtual absl::StatusOr<Program> Lower(const Graph& graph, const Target& target) const = 0;
};

// The backends that are built in. NotFound lists them.
absl::StatusOr<std::unique_ptr<Backend>> CreateBackend(std::string_view name);

}  // namespace lockstep
