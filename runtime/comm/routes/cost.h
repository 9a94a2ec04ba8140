// What collectives take: by the clock, here; and between hosts by the routes that they go.

#pragma once

#include <cstdint>
#include <string_view>
#include <vector>

#include "core/placement.h"
#include "core/status.h"
#include "runtime/comm/routes/route_choice.h"
#include "runtime/communicator.h"

namespace lockstep {

// Seconds of each of some calls, one after the other, of an all_reduce of f32 in registered memory, after one that is
// not counted. All ranks call it together, with the same arguments; `bytes` are rounded up to an element.
absl::StatusOr<std::vector<double>> TimeAllReduce(Communicator& world, int64_t bytes, int calls);

// What an all_reduce of so many bytes takes.
struct SizeCost {
  int64_t bytes = 0;
  int64_t nanoseconds = 0;

  bool operator==(const SizeCost&) const = default;
};

// What all_reduces of growing sizes take among the ranks of `along`, of which `world` has one or several that measure
// at once: medians, of the world's slowest rank, so that all ranks get the same numbers, and such that more bytes never
// take less. All ranks call it together; it takes about a second, on a slow network several.
absl::StatusOr<std::vector<SizeCost>> MeasureCosts(Communicator& along, Communicator& world);

// Likewise along each axis of the mesh, by its position. Empty for an axis whose ranks are on one host: there data
// moves in waits alone, and never behind a kernel.
absl::StatusOr<std::vector<std::vector<SizeCost>>> MeasureCosts(Communicator& world, const Mesh& mesh);

// Of a collective of hosts that have as many ranks each, in any order of additions, by the route that these costs
// choose. `name` as CollectiveOpName gives it; `bytes` as for TravelOf. InvalidArgument if no collective is called so,
// or if there are not one rank at least and a million (2^20) at most.
absl::StatusOr<Travel> TravelBetweenHosts(std::string_view name, int64_t bytes, int64_t hosts, int64_t ranks_a_host,
                                          const NetworkCosts& costs);

}  // namespace lockstep
