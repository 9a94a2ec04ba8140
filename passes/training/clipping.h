// Gradient clipping, between the gradients of the whole batch and the optimizer. Called by MakeTrainStep. One thread at
// a time may use a Graph.

#pragma once

#include <string>
#include <vector>

#include "core/graph.h"
#include "core/status.h"

namespace lockstep::passes {

struct ClippingSpec {
  // "value": each element g becomes min(max(g, -limit), limit), as torch.nn.utils.clip_grad_value_ does.
  // "norm": each gradient is scaled to a 2-norm of at most `limit`. "global_norm": all gradients are scaled by one
  // factor, so that the 2-norm of all elements together is at most `limit`, as clip_grad_norm_ does (Pascanu, Mikolov
  // and Bengio, 2013). The factor is min(1, limit / (norm + 1e-6)), which is NaN if the norm is. "": nothing is
  // clipped.
  std::string by = {};
  double limit = 1;  // above 0; the default of the setting clipping/limit
};

// Returns the clipped gradients, in order. For "global_norm", adds the norm before clipping as the result
// `gradient_norm`: f64[] if some gradient is f64, else f32[]. It is an error if the model has a result of that name.
absl::StatusOr<std::vector<Value>> ClipGradients(Graph& graph, std::vector<Value> gradients, const ClippingSpec& spec);

}  // namespace lockstep::passes
