// The last stage of a compilation: a graph after all passes becomes an Executable.

#pragma once

#include "backends/backend.h"
#include "backends/compile_options.h"
#include "core/graph.h"
#include "core/status.h"
#include "runtime/execution/executable.h"

namespace lockstep {

// Lowers the graph, plans its memory, emits its steps and certifies their order. An error names the op that has no
// kernel, the memory that is missing, or what the certificate does not hold.
absl::StatusOr<Executable> EmitExecutable(Graph graph, const Backend& backend, const Target& target,
                                          const CompileOptions& options);

}  // namespace lockstep
