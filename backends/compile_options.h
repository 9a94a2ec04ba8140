// The options of a compilation: the strategy, which is equal on all ranks and has a text form, and the options of one
// rank and its machine. The table of options is in option_table.h, and the table of exclusions in compile_options.cc.

#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "core/graph.h"
#include "core/status.h"
#include "passes/distribute/merge_collectives.h"
#include "passes/distribute/move_updates_to_servers.h"
#include "passes/distribute/split_inputs.h"
#include "passes/extra_passes.h"
#include "passes/pass.h"

namespace lockstep {

// The options of the ranks' program: equal on all ranks.
struct Strategy {
  // The mesh of the ranks that will run the program; if the graph already has a mesh, they must be equal. Along the
  // axis `stage`, ranks are the stages of a pipeline: the graph must be a training step, which is cut
  // (passes/stages/cut_into_stages.h), and each rank compiles its own part (planning/own_part.h).
  Mesh mesh;
  // Inputs and states to split between ranks, in addition to those that the graph splits; names may be shell patterns.
  passes::PlacementChoices placements;
  // The number of virtual ranks along `data`, which the ranks run (passes/distribute/fold_virtual_ranks.h). A power of
  // two that the number of ranks divides. 0: the ranks are not virtual.
  int64_t virtual_ranks = 0;
  // The rows of each batch that each rank along `data` has: RowShares::rows (core/local_types.h). Requires a step whose
  // batches need not be full (passes/training/uneven.h). Empty: all have equally many.
  std::vector<int64_t> shares;
  bool shard_optimizer = false;  // ranks along `data` split the optimizer's states
  // Ranks along the axis `data`, which must share memory, have one copy of a state if each rank updates a slice of it,
  // or no rank updates it (planning/share_states.h). The slices come from shard_optimizer or from placements.
  bool shared_weights = false;
  // Parameter servers update the trained states, instead of the ranks. Requires a mesh with ranks only along the axis
  // `data`, or no mesh; asynchronous servers require no mesh.
  std::optional<passes::ServerOptions> servers;
  std::optional<int64_t> bucket_bytes;           // collectives are merged into buckets of about this size
  std::optional<passes::MeasuredStep> measured;  // MergeOptions::measured
  std::string wire;                              // PipelineOptions::wire
  std::optional<double> factors;                 // FactorOptions::operations_per_byte; null: the caller chooses
  bool optimize = true;                          // false: only the passes that are necessary to run
  bool replicated = false;                       // all ranks may get the same inputs (passes/distribute/check_shares.h)
  bool tf32 = false;                             // (TargetOptions)
  bool check_numerics = false;                   // a step that makes a NaN is undone (numerics_check.h)
  int64_t verify_hardware = 0;                   // 0, or how often a step is computed twice (hardware_check.h)

  bool operator==(const Strategy&) const = default;

  // Returns the options that differ from the default: mesh={data=2,model=2},split={fc1.weight={model=0}},wire=bf16
  // (core/option_text.h).
  std::string ToString() const;
  // Parses the text of ToString. An error names the option; for an unknown name, also the nearest option.
  static absl::StatusOr<Strategy> Parse(std::string_view text);
};

struct CompileOptions : Strategy {
  // The options of this rank and its machine.
  std::optional<int64_t> rank;            // the rank whose part is compiled; required if the mesh has stages
  int64_t threads = 1;                    // of a rank
  std::string isa;                        // the processor's instructions for kernels, or their GPU (TargetOptions)
  bool tune = false;                      // (TargetOptions)
  uint64_t memory_limit = 0;              // bytes of a rank (memory_limit.h); 0: no limit
  int64_t check_every = 512;              // (ExecutorOptions)
  bool profile = false;                   // (ExecutorOptions)
  bool verify = false;                    // compares with one rank in exact arithmetic (verify/compare_programs.h)
  std::vector<passes::ExtraPass> passes;  // further ones, at their places in the pipeline; ranks compare their texts
  passes::PassDebug debug;                // with a directory for reproducers, a failure after the passes writes one too
};

// Returns the mesh of the options. If it is empty, returns a mesh with all ranks along `data`, except with asynchronous
// servers, where each rank runs its own program. Batches are split along `data`, so a pipeline without this axis gets
// it with size 1. Returns an error if the mesh of the options has another number of ranks.
absl::StatusOr<Mesh> MeshOfRanks(const CompileOptions& options, int64_t num_ranks);

// Checks all options. Returns an error if two options exclude each other, with both names and the reason, or if the
// graph does not meet a requirement of the options. Returns the mesh of all ranks: the options', or the graph's if the
// options have none.
absl::StatusOr<Mesh> CheckOptions(const Graph& graph, const CompileOptions& options, std::string_view backend);

}  // namespace lockstep
