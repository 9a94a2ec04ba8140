#include "passes/pipeline.h"

#include "passes/distribute/check_shares.h"
#include "passes/distribute/distribute.h"
#include "passes/distribute/fold_virtual_ranks.h"
#include "passes/distribute/form_reduce_scatters.h"
#include "passes/distribute/gather_factors.h"
#include "passes/distribute/localize.h"
#include "passes/distribute/lower_exchanges.h"
#include "passes/distribute/move_updates_to_servers.h"
#include "passes/distribute/overlap_collectives.h"
#include "passes/distribute/quantize_wire.h"
#include "passes/distribute/reduce_before_scale.h"
#include "passes/distribute/split_inputs.h"
#include "passes/distribute/wire.h"
#include "passes/legalize/legalize.h"
#include "passes/legalize/widen.h"
#include "passes/optimize/cse.h"
#include "passes/optimize/dce.h"
#include "passes/optimize/fold_constants.h"
#include "passes/optimize/one_pass_statistics.h"
#include "passes/optimize/recognize_attention.h"
#include "passes/optimize/separate_rows.h"
#include "passes/simplify/simplify.h"
#include "passes/stages/cut_into_stages.h"
#include "passes/training/inference_mode.h"

namespace lockstep::passes {

namespace {

// Makes the program of virtual ranks that of the ranks; does nothing if the ranks are not virtual.
Pass Fold(const PipelineOptions& options) {
  if (options.fold_to)
    return FoldVirtualRanks({.ranks = *options.fold_to,
                             .counts = options.virtual_shares.rows,
                             .rank = options.virtual_shares.rank,
                             .supports = options.supports});
  return {"fold-virtual-ranks", [](Graph&) -> absl::StatusOr<bool> { return false; }, Keeps::kMeaning, true};
}

std::vector<Pass> OwnPasses(const PipelineOptions& options) {
  FusionOptions fusion = options.fusion;
  fusion.supports = options.supports;
  const Mesh& ranks = options.ranks;
  const Mesh sharing = options.shard_optimizer ? ranks : Mesh();
  if (!options.optimize) {
    return {SplitInputs(options.placements, ranks),
            ShardOptimizers(sharing),
            CheckShares(ranks, options.replicated),
            MoveUpdatesToServers(options.servers),
            Distribute(options.mesh),
            LowerExchanges(),
            Dce(),
            ChooseWire(options.wire),
            CutIntoStages(options.stages),
            QuantizeWire(),
            Legalize(options.supports, options.rounds_sum),
            Localize(options.shares),
            LowerWire(),
            Fold(options),
            Dce()};
  }
  return {
      SplitInputs(options.placements, ranks),  // applies the user's choices of placements
      ShardOptimizers(sharing),                // splits optimizer states that these choices leave whole
      CheckShares(ranks, options.replicated),  // after all splits of inputs are known
      InferenceMode(),                         // removes dropouts of programs that do not train; they hide patterns
      RecognizeAttention(),                    // for programs without training; MakeTrainStep runs it itself
      SeparateRows(),                          // likewise
      OnePassStatistics(options.fast_f64),     // before `distribute`, which decomposes normalisations
      WidenHalves(options.prefers_f32),        // before sums become partial: a sum is rounded once it is complete
      Simplify(),                              // first, since a small graph makes all later passes cheaper
      FoldConstants(),                         // arithmetic of shapes, and scales
      Cse(),                                   // equal gradients travel once
      Dce(),                                   // unused gradients must not travel
      MoveUpdatesToServers(options.servers),   // needs whole optimizers, and gradients that are not summed yet
      Distribute(options.mesh),                // before decomposition: rules of whole ops say more than of their parts
      LowerExchanges(),                        // the passes below see their collectives like all others
      Dce(),                                   // whole values of which only slices are used
      ReduceBeforeScale(),                     // sums that are divided by a count over all ranks
      Simplify(),                              // collectives that are not needed, or that appear twice
      Dce(),                                   // the collectives that this left unused
      FormReduceScatters(),                    // sums of which each rank uses a slice
      ChooseWire(options.wire),                // while gradients still have their names
      GatherFactors(options.factors),          // after ChooseWire, since it compares bytes on the wire
      CutIntoStages(options.stages),           // late, since it makes a copy of nodes for each micro-batch
      MergeCollectives(options.buckets),       // before decomposition, while gradients are still recognisable
      QuantizeWire(),                          // whole buckets, while gradients still have their names
      Legalize(options.supports, options.rounds_sum),  // from here on the target has a kernel for every node
      Simplify(),                                      // decompositions are written for clarity
      FoldConstants(),                                 // constants of decompositions
      Cse(),                                           // equal constants of decompositions
      Dce(),                                           // unused nodes of decompositions
      Localize(options.shares),                        // after all passes whose new nodes are placed in global types
      LowerWire(),              // after MergeCollectives, which chooses buckets by their gradients
      FuseElementwise(fusion),  // after Legalize, which decomposes optimizers into elementwise ops
      Fold(options),            // after all passes whose choices change bits, which so are those of virtual ranks
      Dce(),                    // broadcasts and constants that were copied into fusions
      OverlapCollectives(),     // last, since no pass may reorder nodes after it
  };
}

}  // namespace

std::vector<Pass> MakePipeline(const PipelineOptions& options) {
  return WithExtraPasses(OwnPasses(options), options.extra, OwnPasses({}));
}

absl::Status CheckExtraPasses(const std::vector<ExtraPass>& extra) { return CheckPlaces(extra, OwnPasses({})); }

}  // namespace lockstep::passes
