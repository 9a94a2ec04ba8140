// Refuses a program of whose inputs and states the ranks share nothing: each would get the same, and compute the same.
//
//   graph @step(%x: f32[128,784], state %w: f32[784,10]) -> …      over {data=2} is an error,
//   graph @step(%x: f32[128,784] split(0), …) -> …                 is not
//
// An axis `stage` needs nothing that is split: its ranks have parts of the program. What is split along another axis it
// cannot cut (passes/stages/cut_into_stages.h), which is an error, too.

#pragma once

#include "core/placement.h"
#include "passes/pass.h"

namespace lockstep::passes {

// `mesh` is that of all ranks, its stages too; `replicated`: that ranks compute the same is meant. Changes nothing.
Pass CheckShares(Mesh mesh, bool replicated);

}  // namespace lockstep::passes
