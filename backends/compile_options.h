// What a compilation is asked for: the strategy, which is what all ranks run and has a text form, and what concerns
// one rank and its machine. The table of the options is option_table.h, and what excludes each other
// compile_options.cc.

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

// What the ranks run: equal on all of them.
struct Strategy {
  // Of the ranks that will run it; a graph that has a mesh already must have this one. Along the axis `stage` ranks are
  // the stages of a pipeline: the graph is a training step, which is cut (passes/stages/cut_into_stages.h), and each
  // rank compiles its own part (planning/own_part.h).
  Mesh mesh;
  // Inputs and states that the ranks split, in addition to those that the graph says; patterns are those of the shell.
  passes::PlacementChoices placements;
  bool shard_optimizer = false;  // ranks along `data` split the optimizer's states
  // Ranks along the axis `data`, which must share memory, have one copy of the states of which each rank updates a
  // slice, or which no rank updates (planning/share_states.h). The slices come from shard_optimizer or from placements.
  bool shared_weights = false;
  // Parameter servers update what is trained, instead of each rank. Needs a mesh of the one axis `data`, or none; where
  // it is not synchronous none.
  std::optional<passes::ServerOptions> servers;
  std::optional<int64_t> bucket_bytes;           // collectives are merged into buckets of about this size
  std::optional<passes::MeasuredStep> measured;  // MergeOptions::measured
  std::string wire;                              // PipelineOptions::wire
  std::optional<double> factors;                 // FactorOptions::operations_per_byte; null: what a caller chooses
  bool optimize = true;                          // false: only what is needed to run, for comparing
  bool replicated = false;  // every rank is meant to get the same inputs (passes/distribute/check_shares.h)
  bool tf32 = false;        // (TargetOptions)

  bool operator==(const Strategy&) const = default;

  // What is not the default, such as mesh={data=2,model=2},split={fc1.weight={model=0}},wire=bf16 (core/option_text.h).
  std::string ToString() const;
  // Of such a text. Errors name the option, and the nearest one if there is none of a name.
  static absl::StatusOr<Strategy> Parse(std::string_view text);
};

struct CompileOptions : Strategy {
  // Of this rank and its machine.
  std::optional<int64_t> rank;  // whose part is compiled, in the mesh; needed where that has stages
  int64_t threads = 1;          // of a rank
  std::string isa;              // what kernels may use of the processor, or which GPU they are for (TargetOptions)
  bool tune = false;            // (TargetOptions)
  uint64_t memory_limit = 0;    // bytes of a rank (memory_limit.h); 0: no limit
  int64_t check_every = 512;    // (ExecutorOptions)
  bool profile = false;         // (ExecutorOptions)
  passes::PassDebug debug;      // with a directory for reproducers, a failure after the passes leaves one too
};

// The one place that refuses options: of two that exclude each other, naming both and why; and of what the graph, as it
// comes to Compile, is not. The result says what the mesh of all ranks is: the options', or the graph's.
absl::StatusOr<Mesh> CheckOptions(const Graph& graph, const CompileOptions& options, std::string_view backend);

}  // namespace lockstep
