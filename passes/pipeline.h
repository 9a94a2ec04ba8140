// The passes between a program and a backend, in order: one list, with the reason for each place in it. compile.cc runs
// it.

#pragma once

#include <functional>
#include <optional>
#include <string>
#include <vector>

#include "core/placement.h"
#include "passes/distribute/gather_factors.h"
#include "passes/distribute/merge_collectives.h"
#include "passes/distribute/move_updates_to_servers.h"
#include "passes/distribute/split_inputs.h"
#include "passes/optimize/fuse_elementwise.h"
#include "passes/pass.h"
#include "passes/stages/stage_plan.h"

namespace lockstep::passes {

struct PipelineOptions {
  Mesh ranks;                    // all of them, with the stages
  PlacementChoices placements;   // which inputs and states the ranks share, beside what the graph says
  bool shard_optimizer = false;  // ranks along `data` share what optimizers keep
  bool replicated = false;       // that ranks share nothing, and all compute the same, is meant
  Mesh mesh;                     // what the graph is to be distributed over; empty if that is done, or for one rank
  std::optional<ServerOptions> servers;  // parameter servers update the variables; null: each rank does
  StageOptions stages;                   // what it is to be cut into then; one stage: nothing
  std::string wire;  // the dtype as which gradients travel between ranks (passes/distribute/wire.h); empty: their own
  FactorOptions factors;  // whether sums over ranks are computed from gathered factors
  MergeOptions buckets;
  std::function<bool(const Node&)> supports;     // whether the target has a kernel for a node as it is
  std::function<bool(const Node&)> prefers_f32;  // of nodes in 16 bits (passes/legalize/widen.h); empty: none
  FusionOptions fusion;  // which nodes the target makes one loop of; its `supports` is the one above
  bool optimize = true;  // false: only what is needed to run
};

std::vector<Pass> MakePipeline(const PipelineOptions& options);

}  // namespace lockstep::passes
