// Rejects a program if no input or state is split over the ranks: all ranks would get and compute the same.
//
//   graph @step(%x: f32[128,784], state %w: f32[784,10]) -> …      over {data=2} is an error,
//   graph @step(%x: f32[128,784] split(0), …) -> …                 is not
//
// The axis `stage` needs no split inputs, since its ranks have parts of the program. With stages, a state that is split
// along another axis is an error too (passes/stages/cut_into_stages.h).

#pragma once

#include "core/placement.h"
#include "passes/pass.h"

namespace lockstep::passes {

// `mesh` is the mesh of all ranks, including the axis of stages. `replicated` allows that all ranks compute the same.
// Changes nothing.
Pass CheckShares(Mesh mesh, bool replicated);

}  // namespace lockstep::passes
