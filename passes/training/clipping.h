// Gradient clipping: between the gradients of the whole batch and the optimizer. Called by MakeTrainStep; one thread at
// a time may use a Graph.

#pragma once

#include <string>
#include <vector>

#include "core/graph.h"
#include "core/status.h"

namespace lockstep::passes {

struct ClippingSpec {
  // "value": each element g becomes min(max(g, -limit), limit), as torch.nn.utils.clip_grad_value_ does.
  // "norm": each gradient is scaled to a 2-norm of at most `limit`; "global_norm": all of them by one factor, so that
  // the 2-norm of all elements together is at most that, as clip_grad_norm_ does (Pascanu, Mikolov and Bengio, 2013):
  // by min(1, limit / (norm + 1e-6)), which a norm that is NaN makes NaN. "": nothing is clipped.
  std::string by = {};
  double limit = 1;  // above 0; the setting clipping/limit
};

// The gradients, clipped, in order. By global norm, that norm before clipping is the result `gradient_norm`, f32[] or
// of a wider dtype if some gradient has one; an error if the model has a result of that name.
absl::StatusOr<std::vector<Value>> ClipGradients(Graph& graph, std::vector<Value> gradients, const ClippingSpec& spec);

}  // namespace lockstep::passes
