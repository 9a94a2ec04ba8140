// The list of passes between a program and a backend, in order. The source gives the reason for the place of each pass.
// compile.cc runs the list.

#pragma once

#include <functional>
#include <optional>
#include <string>
#include <vector>

#include "core/local_types.h"
#include "core/placement.h"
#include "passes/distribute/gather_factors.h"
#include "passes/distribute/merge_collectives.h"
#include "passes/distribute/move_updates_to_servers.h"
#include "passes/distribute/split_inputs.h"
#include "passes/extra_passes.h"
#include "passes/optimize/fuse_elementwise.h"
#include "passes/pass.h"
#include "passes/stages/stage_plan.h"

namespace lockstep::passes {

struct PipelineOptions {
  Mesh ranks;                            // the mesh of all ranks, including the axis of stages
  PlacementChoices placements;           // inputs and states that are split, in addition to those that the graph splits
  bool shard_optimizer = false;          // ranks along `data` share the optimizers' states
  bool replicated = false;               // allows a program of which ranks share nothing: all compute the same
  Mesh mesh;                             // the mesh for `distribute`; empty for one rank or an already placed graph
  std::optional<ServerOptions> servers;  // parameter servers update the variables; null: each rank does
  StageOptions stages;                   // the pipeline stages that the graph is cut into; one stage: no cut
  std::string wire;  // the dtype as which gradients travel between ranks (passes/distribute/wire.h); empty: their own
  FactorOptions factors;  // decides which sums over ranks are computed from gathered factors
  MergeOptions buckets;
  std::function<bool(const Node&)> supports;     // true if the target has a kernel for the node as it is
  std::function<bool(const Node&)> prefers_f32;  // for nodes in 16 bits (passes/legalize/widen.h); empty: none
  std::function<bool(const Node&)> rounds_sum;   // for sums with wide results (passes/legalize/legalize.h); empty: none
  bool fast_f64 = true;                          // sums in f64 take no longer than reading their operands from memory
  RowShares shares;                              // of the batch, if they are not equal
  RowShares virtual_shares;                      // the virtual ranks of each rank, if these are not equally many
  FusionOptions fusion;            // the nodes that the target fuses; its `supports` is replaced by the one above
  std::optional<int64_t> fold_to;  // the ranks that run the virtual ranks `mesh`; null: the ranks are not virtual
  bool optimize = true;            // false: runs only the passes that execution needs
  std::vector<ExtraPass> extra;    // passes of the caller, for which CheckExtraPasses returns OK
};

std::vector<Pass> MakePipeline(const PipelineOptions& options);

// Returns an error if a pass has no place in the pipeline, or the name of another one (extra_passes.h).
absl::Status CheckExtraPasses(const std::vector<ExtraPass>& extra);

}  // namespace lockstep::passes
