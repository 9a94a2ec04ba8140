// Chooses the placements of values in the body of a `scan`, for the pass Distribute. The op's placement rule then
// checks them (core/ops/scan.cc).
//
//   scan %h, %xs, %w {carried=1, scanned=1, body=(%h.t, %x.t, %w) ...}     with %xs split(1), %w replicated
//
// gives %x.t the placement split(0), and by the rules of the ops in the body %h.t too. A whole operand of which the
// body uses only a slice is cut before the loop. Ranks do not communicate within a loop. If the placements of the
// operands would need that, the constants of the loop are made whole, or else all operands. If a loop over
// micro-batches (one_at_a_time) with split operands would have to be whole on every rank, that is an error, as the
// ranks would share no work.

#pragma once

#include <functional>
#include <vector>

#include "core/graph.h"
#include "core/status.h"

namespace lockstep::passes {

// Places a body along one more axis, without collectives. The inputs of the body are placed; its results keep the
// placements with which they are computed.
using PlaceBodyFn = std::function<absl::StatusOr<Graph>(Graph body)>;

// Replaces the body of `scan`, a node of `graph`, by one that is placed along `axis`. `operands` are the placements of
// its operands along `axis`, which is an axis of `mesh`.
absl::Status PlaceScanBody(Graph& graph, Node& scan, const std::vector<Placement>& operands, const std::string& axis,
                           const Mesh& mesh, const PlaceBodyFn& place);

}  // namespace lockstep::passes
