// What collectives take: by the clock, here; and between hosts by the routes that they go.

#pragma once

#include <cstdint>
#include <string_view>
#include <vector>

#include "core/status.h"
#include "runtime/comm/route_choice.h"
#include "runtime/communicator.h"

namespace lockstep {

// Seconds of each of some calls, one after the other, of an all_reduce of f32 in registered memory, after one that is
// not counted. All ranks call it together, with the same arguments; `bytes` are rounded up to an element.
absl::StatusOr<std::vector<double>> TimeAllReduce(Communicator& world, int64_t bytes, int calls);

// Of a collective of hosts that have as many ranks each, in any order of additions, by the route that these costs
// choose. `name` as CollectiveOpName gives it; `bytes` as for TravelOf. InvalidArgument if no collective is called so.
absl::StatusOr<Travel> TravelBetweenHosts(std::string_view name, int64_t bytes, int hosts, int ranks_a_host,
                                          const NetworkCosts& costs);

}  // namespace lockstep
