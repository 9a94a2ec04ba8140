// Turns a scheduled and planned program into the steps of an executable. Instructions become steps one to one.

#pragma once

#include "backends/planning/buffer_plan.h"
#include "backends/planning/program.h"
#include "runtime/execution/executable.h"

namespace lockstep {

StepList EmitSteps(Program& program, const BufferPlan& plan);

}  // namespace lockstep
