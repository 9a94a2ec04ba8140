// Compiles a graph for a backend: the whole way from a program to an Executable, told in compile.cc. Python, the tools
// and tests call it. The result depends on the arguments alone, so ranks that compile the same graph get the same
// certificate; where the mesh has stages, those of one stage do.

#pragma once

#include <cstdint>
#include <optional>
#include <string>

#include "backends/backend.h"
#include "core/graph.h"
#include "core/status.h"
#include "passes/distribute/merge_collectives.h"
#include "passes/distribute/move_updates_to_servers.h"
#include "passes/distribute/split_inputs.h"
#include "passes/pass.h"
#include "runtime/executable.h"

namespace lockstep {

struct CompileOptions {
  // Of the ranks that will run it; a graph that has a mesh already must have this one. Along the axis `stage` ranks are
  // the stages of a pipeline: the graph is a training step, which is cut (passes/stages/cut_into_stages.h), and each
  // rank compiles its own part (planning/own_part.h).
  Mesh mesh;
  std::optional<int64_t> rank;  // whose part is compiled, in the mesh; needed where that has stages
  // Which inputs and states the ranks share, beside what the graph says; patterns are those of the shell.
  passes::PlacementChoices placements;
  bool shard_optimizer = false;  // ranks along `data` share what optimizers keep; not with stages
  int threads = 1;               // of a rank
  std::string isa;               // what kernels may use of the processor, or which GPU they are for (TargetOptions)
  bool tf32 = false;             // (TargetOptions)
  bool tune = false;             // (TargetOptions)
  int64_t bucket_bytes = passes::MergeOptions().max_bytes;  // collectives are merged into buckets of about this size
  std::optional<passes::MeasuredStep> measured;             // MergeOptions::measured; equal on all ranks
  std::string wire;                                         // PipelineOptions::wire
  double operations_per_byte = 0;                           // FactorOptions::operations_per_byte
  // Ranks along the axis `data`, which share memory then, have one copy of the states of which each updates a slice or
  // nobody anything (planning/share_states.h): of those that shard_optimizer makes slices of, or placements.
  bool shared_weights = false;  // not with stages
  // Parameter servers update what is trained, instead of each rank. Needs a mesh of the one axis `data`, or none; where
  // it is not synchronous none. For the CPU.
  std::optional<passes::ServerOptions> servers;
  uint64_t memory_limit = 0;  // bytes of a rank (memory_limit.h); 0: no limit
  bool optimize = true;       // false: only what is needed to run, for comparing
  bool replicated = false;    // every rank is meant to get the same inputs; see Compile
  passes::PassDebug debug;    // with a directory for reproducers, a failure after the passes leaves one too
};

// `graph` is the one-rank program over the global batch, or one that distribute has already made a rank's. With several
// ranks and inputs and states of which none is split over them, every rank would compute the same: an error, unless
// options.replicated. With stages errors are those of CutGraphIntoStages, and of options that pipelines do not have.
absl::StatusOr<Executable> Compile(Graph graph, const Backend& backend, const CompileOptions& options);

}  // namespace lockstep
