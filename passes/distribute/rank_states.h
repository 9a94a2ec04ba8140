// States that passes add to the program of all ranks beside a trained state, such as what compression has not sent yet.

#pragma once

#include <cstdint>
#include <string>
#include <string_view>

#include "core/graph.h"
#include "core/status.h"

namespace lockstep::passes {

// Returns the shape with `extent` before its dimensions, as of values of all ranks that are stacked.
Shape WithFront(int64_t extent, const Shape& shape);

// Makes `next` the next value of `state`, an input of `graph`, in every step that gives the state `trained` its next
// value. If a step keeps `trained` because its gradients are not finite (training/loss_scaling.h), it keeps `state`
// too. `state` changes in every step if the graph has no next value of `trained`. New nodes have the source `source`.
absl::Status AddStateResultWith(Graph& graph, std::string_view trained, Value state, Value next,
                                const std::string& source);

}  // namespace lockstep::passes
