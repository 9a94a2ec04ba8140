// The last stage of a compilation: a graph after all passes becomes an Executable.

#pragma once

#include "backends/backend.h"
#include "backends/compile_options.h"
#include "core/graph.h"
#include "core/status.h"
#include "runtime/execution/executable.h"

namespace lockstep {

// Lowers the graph, plans its memory, emits its steps and certifies their order. An error names the op without a
// kernel, the missing memory, or the rule of the certificate that is violated.
absl::StatusOr<Executable> EmitExecutable(Graph graph, const Backend& backend, const Target& target,
                                          const CompileOptions& options);

}  // namespace lockstep
