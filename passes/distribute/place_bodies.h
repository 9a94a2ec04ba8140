// Where the values in the body of a `scan` are, for the pass Distribute: it decides, and the op's placement rule then
// checks (core/ops/scan.cc).
//
//   scan %h, %xs, %w {carried=1, scanned=1, body=(%h.t, %x.t, %w) ...}     with %xs split(1), %w replicated
//
// gives %x.t, and by the rules of the ops in the body %h.t too, split(0). An operand that is whole, and of which the
// body wants a slice alone, is cut before the loop. Ranks do not meet within a loop: where the operands as they are
// would need that, those that are constants of the loop are made whole, else all of them; but a loop over micro-batches
// (one_at_a_time) that would have to be whole on every rank is an error, as nothing would be shared.

#pragma once

#include <functional>
#include <vector>

#include "core/graph.h"
#include "core/status.h"

namespace lockstep::passes {

// Places a copy of a body, whose inputs are placed, along one more axis, without collectives; results stay where they
// are.
using PlaceBodyFn = std::function<absl::StatusOr<Graph>(Graph body)>;

// Gives `scan`, a node of `graph` whose operands are placed so along `axis`, a body that is placed along that axis. The
// axis is one of `mesh`, over which the operands are placed.
absl::Status PlaceScanBody(Graph& graph, Node& scan, const std::vector<Placement>& operands, const std::string& axis,
                           const Mesh& mesh, const PlaceBodyFn& place);

}  // namespace lockstep::passes
