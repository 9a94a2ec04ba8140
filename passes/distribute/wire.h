// Reduces the bytes of gradients that travel between ranks: to a half as bf16, to a quarter as int8. Gradients tolerate
// this, since they are averages over many samples. Later steps correct the rounding error of one step; as int8, it is
// added to the next gradient (quantize_wire.h).
//
// ChooseWire changes the meaning of the program, which then rounds. LowerWire keeps the meaning.
//
// ChooseWire marks the f32 gradients of trained states, which train-step names grad/<state>. It chooses int8 only if
// the graph updates the state and the gradient is replicated along all other axes:
//
//   %grad/w.1 = all_reduce %grad/w {axis=data, kind=sum} : f32[4,3]
// becomes
//   %grad/w.1 = all_reduce %grad/w {axis=data, kind=sum, wire="bf16"} : f32[4,3]
//
// LowerWire lowers bf16, in a local graph. QuantizeWire lowers int8, earlier in the pipeline. For bf16 the result is:
//
//   %a = convert %grad/w {dtype=bf16, rounds_parts=true} : bf16[4,3]
//   %b = all_reduce %a {axis=data, kind=sum} : bf16[4,3]
//   %grad/w.1 = convert %b {dtype=f32} : f32[4,3]
//
// Sums of bf16 are computed in f32 and rounded once (core/ops/collective.cc).

#pragma once

#include <string>

#include "core/graph.h"
#include "passes/pass.h"

namespace lockstep::passes {

// Returns the bytes that travel, by the wire of an all_reduce or a reduce_scatter, as a fraction of the bytes of its
// operand: 1 without a wire.
double WireByteFraction(const Node& reduction);

// `dtype`: "bf16", "int8", or empty for none.
Pass ChooseWire(std::string dtype);
Pass LowerWire();

}  // namespace lockstep::passes
