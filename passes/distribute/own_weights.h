// Gives each rank weights of its own between two times at which an exchange lets the ranks agree, for the pass
// lower-exchanges.
//
// A rank's own weights are the state %w, on which all ranks agreed last, plus its row of the state %w/own. They take
// the place of %w in the model and in its update. For %w of 3 x 4 elements on n ranks,
//
//   %grad/w = …                                                 f32[3,4] partial(sum)
//   %g = exchange %grad/w {by="local_sgd(every=8)", state=w}
//   %new = sgd %w, %g
//   %w.next = exchange_weights %new {by="local_sgd(every=8)", state=w, body=…}
// becomes
//   %0 = own_part %w/own {axis=data} : f32[3,4] local           state %w/own: f32[n,3,4] split(0)
//   %1 = as_replicated (%w + %0)                                 a rank's own weights, in all places of %w
//   %g = as_replicated (n * %grad/w as a local value)            the gradient of its own part of the batch
//   %new = sgd %1, %g
//   %w.next, %w/own.next = the body, of %new as a local value and %w
//
// States of the optimizer that are computed from a rank's own values, such as %w/momentum, become states of each rank,
// %w/momentum/own: f32[n,3,4] split(0).

#pragma once

#include "core/graph.h"
#include "core/status.h"

namespace lockstep::passes {

// Lowers an exchange of weights with a body, and the exchange of the state's gradient.
absl::Status LowerExchangeOfWeights(Graph& graph, Node& exchange);

// Gives each rank states of its own where they follow from its own weights. Returns an error if another state, or a
// result, would differ between ranks. It names the state and the weights.
absl::Status KeepOwnStates(Graph& graph);

}  // namespace lockstep::passes
