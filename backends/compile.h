// Compiles a graph for a backend: all stages from a program to an Executable, in order in compile.cc. Called by Python,
// tools and tests. The result depends only on the arguments, so ranks that compile the same graph get the same
// certificate; if the mesh has stages, the ranks of one stage do.

#pragma once

#include "backends/backend.h"
#include "backends/compile_options.h"
#include "core/graph.h"
#include "core/status.h"
#include "runtime/execution/executable.h"
#include "verify/meaning.h"

namespace lockstep {

// `graph` is the one-rank program over the global batch, or a placed or local program that the passes distribute and
// localize made of it. With `options.verify`, programs are compared as by Verify, but for gradients. Returns the errors
// of CheckOptions, of the passes, of the comparison and of EmitExecutable.
absl::StatusOr<Executable> Compile(Graph graph, const Backend& backend, const CompileOptions& options);

// Compares the program that Compile makes of `graph` for all ranks of the options' mesh with `graph`, in exact
// arithmetic (verify/compare_programs.h), or with `graph` itself if that is placed. Runs no rank, and makes no
// executable. With `shrink`, a program without a mesh of more than some million operations is made smaller first
// (verify/shrink.h), and its buckets become as much smaller as its states, unless there are servers or measured links.
// Returns what the comparison takes for granted. An error names the pass and the value, and the dimensions that became
// smaller.
absl::StatusOr<verify::Assumptions> Verify(const Graph& graph, const Backend& backend, const CompileOptions& options,
                                           bool shrink = true);

}  // namespace lockstep
