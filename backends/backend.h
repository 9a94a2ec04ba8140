// What a backend is: it says what it has kernels for, and lowers a graph that keeps to that into a Program of kernels over
// storages. Everything else, from the pipeline before to buffers, certificate and steps after, is shared (compile.cc).
// Backends hold no state between calls; any thread may use one.

#pragma once

#include <cstdint>
#include <memory>
#include <string>
#include <string_view>
#include <vector>

#include "backends/planning/program.h"
#include "core/graph.h"
#include "core/status.h"

namespace lockstep {

// How the kernels of one executable are made.
struct LoweringOptions {
  int threads = 1;  // of a rank
  std::string
      isa;  // the instruction set that kernels may use, as the backend names it; empty: all that the processor has
};

class Backend {
 public:
  virtual ~Backend() = default;

  virtual std::string_view name() const = 0;  // "cpu"

  // Whether there is a kernel for the node as it is; the pipeline decomposes the others where it can.
  virtual bool Supports(const Node& node) const = 0;

  // One or more instructions for each node, in the graph's order. An op without a kernel is an error that names it.
  virtual absl::StatusOr<Program> Lower(const Graph& graph, const LoweringOptions& options) const = 0;

  // Lines about the processor and the libraries behind kernels that are made with `options`: where two processes have the same,
  // equal programs compute equal bits. After a Lower with these options.
  virtual absl::StatusOr<std::string> Fingerprint(const LoweringOptions& options) const = 0;
};

// The backends that are built in. NotFound lists them.
absl::StatusOr<std::unique_ptr<Backend>> CreateBackend(std::string_view name);

}  // namespace lockstep
