// Halves what gradients weigh as they travel between ranks. Gradients tolerate that: they are averages of many samples,
// and what rounding takes from one step the next ones bring again.
//
// ChooseWire makes another program, which rounds; LowerWire leaves it what it is.
//
// ChooseWire says it of the gradients of trained states, which train-step names grad/<state>, where they are f32:
//
//   %grad/w.1 = all_reduce %grad/w {axis=data, kind=sum} : f32[4,3]
// becomes
//   %grad/w.1 = all_reduce %grad/w {axis=data, kind=sum, wire="bf16"} : f32[4,3]
//
// LowerWire makes it so, in a local graph:
//
//   %a = convert %grad/w {dtype=bf16, rounds_parts=true} : bf16[4,3]
//   %b = all_reduce %a {axis=data, kind=sum} : bf16[4,3]
//   %grad/w.1 = convert %b {dtype=f32} : f32[4,3]
//
// Sums of bf16 are taken in f32 and rounded once (core/ops/collective.cc).

#pragma once

#include <string>

#include "passes/pass.h"

namespace lockstep::passes {

// `dtype`: "bf16", or empty for none.
Pass ChooseWire(std::string dtype);
Pass LowerWire();

}  // namespace lockstep::passes
