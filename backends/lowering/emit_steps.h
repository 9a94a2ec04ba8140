// Turns a scheduled and planned program into the steps of an executable. Instructions become steps one to one.

#pragma once

#include "backends/lowering/buffer_plan.h"
#include "backends/lowering/program.h"
#include "runtime/executable.h"

namespace lockstep {

StepList EmitSteps(Program& program, const BufferPlan& plan);

}  // namespace lockstep
