// Turns a scheduled and planned program into the steps of an executable, one step per instruction.

#pragma once

#include "backends/planning/buffer_plan.h"
#include "backends/planning/program.h"
#include "runtime/execution/executable.h"

namespace lockstep {

StepList EmitSteps(Program& program, const BufferPlan& plan);

}  // namespace lockstep
