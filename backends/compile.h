// Compiles a graph for a backend: the whole way from a program to an Executable, told in compile.cc. Python, the tools
// and tests call it. The result depends on the arguments alone, so ranks that compile the same graph get the same
// certificate; where the mesh has stages, those of one stage do.

#pragma once

#include "backends/backend.h"
#include "backends/compile_options.h"
#include "core/graph.h"
#include "core/status.h"
#include "runtime/execution/executable.h"

namespace lockstep {

// `graph` is the one-rank program over the global batch, or one that distribute has already made a rank's. Errors are
// those of CheckOptions, of the passes, and of EmitExecutable.
absl::StatusOr<Executable> Compile(Graph graph, const Backend& backend, const CompileOptions& options);

}  // namespace lockstep
