// Makes gradients weigh less as they travel between ranks: half as bf16, a quarter as int8. They tolerate that: they
// are averages of many samples; and what rounding takes from one step the next ones bring again, or, as int8, are given
// (quantize_wire.h).
//
// ChooseWire makes another program, which rounds; LowerWire leaves it what it is.
//
// ChooseWire says it of the gradients of trained states, which train-step names grad/<state>, where they are f32; as
// int8 only where the graph updates the state, and no other axis has shares of the gradient:
//
//   %grad/w.1 = all_reduce %grad/w {axis=data, kind=sum} : f32[4,3]
// becomes
//   %grad/w.1 = all_reduce %grad/w {axis=data, kind=sum, wire="bf16"} : f32[4,3]
//
// LowerWire makes it so of bf16, in a local graph; QuantizeWire of int8, before:
//
//   %a = convert %grad/w {dtype=bf16, rounds_parts=true} : bf16[4,3]
//   %b = all_reduce %a {axis=data, kind=sum} : bf16[4,3]
//   %grad/w.1 = convert %b {dtype=f32} : f32[4,3]
//
// Sums of bf16 are taken in f32 and rounded once (core/ops/collective.cc).

#pragma once

#include <string>

#include "core/graph.h"
#include "passes/pass.h"

namespace lockstep::passes {

// Of the bytes of what an all_reduce or a reduce_scatter takes, those that travel, by its wire: 1 without one.
double ShareThatTravels(const Node& reduction);

// `dtype`: "bf16", "int8", or empty for none.
Pass ChooseWire(std::string dtype);
Pass LowerWire();

}  // namespace lockstep::passes
