#include "passes/pipeline.h"

#include "passes/distribute/check_shares.h"
#include "passes/distribute/distribute.h"
#include "passes/distribute/form_reduce_scatters.h"
#include "passes/distribute/gather_factors.h"
#include "passes/distribute/localize.h"
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
#include "passes/optimize/recognize_attention.h"
#include "passes/optimize/separate_rows.h"
#include "passes/simplify/simplify.h"
#include "passes/stages/cut_into_stages.h"
#include "passes/training/inference_mode.h"

namespace lockstep::passes {

std::vector<Pass> MakePipeline(const PipelineOptions& options) {
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
            Dce(),
            ChooseWire(options.wire),
            CutIntoStages(options.stages),
            QuantizeWire(),
            Legalize(options.supports),
            Localize(),
            LowerWire()};
  }
  return {
      SplitInputs(options.placements, ranks),  // what the user says that ranks share
      ShardOptimizers(sharing),                // of what that leaves whole
      CheckShares(ranks, options.replicated),  // when all that is shared has been said
      InferenceMode(),                         // what is not trained drops nothing, and is clear to see through
      RecognizeAttention(),                    // of programs that are not trained: others come with it
      SeparateRows(),                          // and so does this
      WidenHalves(options.prefers_f32),        // before ranks have parts of sums: they are rounded when they are whole
      Simplify(),                              // a small graph first: everything after is cheaper
      FoldConstants(),                         // shapes' arithmetic and scales
      Cse(),                                   // equal gradients travel once
      Dce(),                                   // unused gradients must not travel
      MoveUpdatesToServers(options.servers),   // whole optimizers, whose gradients are not summed yet
      Distribute(options.mesh),                // on whole ops, whose placement rules say more than those of their parts
      Dce(),                                   // what was computed whole, and is wanted in slices alone
      ReduceBeforeScale(),                     // of what is divided by a count of all ranks
      Simplify(),                              // what need not travel, and what travels twice
      Dce(),                                   // and then does not
      FormReduceScatters(),                    // of what is wanted in slices, slices alone travel
      ChooseWire(options.wire),                // as long as gradients have their names
      GatherFactors(options.factors),          // where a sum, with its wire, is more than what it is computed from
      CutIntoStages(options.stages),           // as late as can be: it makes as many copies as there are micro-batches
      MergeCollectives(options.buckets),       // before ops are taken apart: gradients are still recognisable
      QuantizeWire(),                          // a bucket at once, as long as gradients have their names
      Legalize(options.supports),              // from here on only what the target has kernels for
      Simplify(),                              // decompositions are written for clarity
      FoldConstants(),                         // and compute on constants
      Cse(),                                   // of which many are equal
      Dce(),                                   // and some are left over
      Localize(),                              // after all that makes new nodes, which rules place in global types
      LowerWire(),                             // after the buckets, which are chosen by what they hold
      FuseElementwise(fusion),                 // after legalizing, since optimizers fall apart into elementwise ops
      Dce(),                                   // broadcasts and constants that were copied into every fusion
      OverlapCollectives(),                    // last: it moves nodes, so nothing may reorder after it
  };
}

}  // namespace lockstep::passes
