// What a compilation is asked for, and which of that excludes each other: one table of options and one of exclusions,
// in compile_options.cc. A new option is a field here, its row there, and what applies it in compile.cc.

#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <string_view>

#include "core/graph.h"
#include "core/status.h"
#include "passes/distribute/merge_collectives.h"
#include "passes/distribute/move_updates_to_servers.h"
#include "passes/distribute/split_inputs.h"
#include "passes/pass.h"

namespace lockstep {

struct CompileOptions {
  // --- What the ranks run: equal on all of them. ---------------------------------------------------------------------

  // Of the ranks that will run it; a graph that has a mesh already must have this one. Along the axis `stage` ranks are
  // the stages of a pipeline: the graph is a training step, which is cut (passes/stages/cut_into_stages.h), and each
  // rank compiles its own part (planning/own_part.h).
  Mesh mesh;
  // Which inputs and states the ranks share, beside what the graph says; patterns are those of the shell.
  passes::PlacementChoices placements;
  bool shard_optimizer = false;  // ranks along `data` share what optimizers keep
  // Ranks along the axis `data`, which share memory then, have one copy of the states of which each updates a slice or
  // nobody anything (planning/share_states.h): of those that shard_optimizer makes slices of, or placements.
  bool shared_weights = false;
  std::string wire;                              // PipelineOptions::wire
  std::optional<double> factors;                 // FactorOptions::operations_per_byte; null: none, and nobody asked
  std::optional<int64_t> bucket_bytes;           // collectives are merged into buckets of about this size
  std::optional<passes::MeasuredStep> measured;  // MergeOptions::measured
  // Parameter servers update what is trained, instead of each rank. Needs a mesh of the one axis `data`, or none; where
  // it is not synchronous none.
  std::optional<passes::ServerOptions> servers;
  bool replicated = false;  // every rank is meant to get the same inputs (passes/distribute/check_shares.h)
  bool optimize = true;     // false: only what is needed to run, for comparing
  bool tf32 = false;        // (TargetOptions)

  // --- What concerns this rank and its machine. ----------------------------------------------------------------------

  std::optional<int64_t> rank;  // whose part is compiled, in the mesh; needed where that has stages
  int threads = 1;              // of a rank
  std::string isa;              // what kernels may use of the processor, or which GPU they are for (TargetOptions)
  bool tune = false;            // (TargetOptions)
  uint64_t memory_limit = 0;    // bytes of a rank (memory_limit.h); 0: no limit
  passes::PassDebug debug;      // with a directory for reproducers, a failure after the passes leaves one too
};

// What makes other programs of the same graph, a line each, as users write it: ranks compare it.
std::string OptionsText(const CompileOptions& options);

// The one place that refuses options: of two that exclude each other, naming both and why; and of what the graph, as it
// comes to Compile, is not. The result says what the mesh of all ranks is: the options', or the graph's.
absl::StatusOr<Mesh> CheckOptions(const Graph& graph, const CompileOptions& options, std::string_view backend);

}  // namespace lockstep
