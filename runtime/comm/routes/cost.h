// Measured times of collectives, and the traffic of their routes between hosts.

#pragma once

#include <cstdint>
#include <string_view>
#include <vector>

#include "core/placement.h"
#include "core/status.h"
#include "runtime/comm/routes/route_choice.h"
#include "runtime/communicator.h"

namespace lockstep {

// Returns the seconds of each of `calls` consecutive all_reduces of f32 in registered memory, after one that is not
// counted. All ranks call it together, with the same arguments. `bytes` is rounded up to an element.
absl::StatusOr<std::vector<double>> TimeAllReduce(Communicator& world, int64_t bytes, int calls);

// The time of an all_reduce of so many bytes.
struct SizeCost {
  int64_t bytes = 0;
  int64_t nanoseconds = 0;

  bool operator==(const SizeCost&) const = default;
};

// Measures all_reduces of growing sizes between the ranks of `along`. The communicators into which `world` was split
// measure at once. The times are medians of the world's slowest rank, so that all ranks get the same numbers, and they
// do not decrease with the size. All ranks call it together. It takes about a second, on a slow network several.
absl::StatusOr<std::vector<SizeCost>> MeasureCosts(Communicator& along, Communicator& world);

// Measures each axis of the mesh, by its position. The result is empty for an axis whose ranks are on one host: there,
// data moves only during waits, and never concurrently with a kernel.
absl::StatusOr<std::vector<std::vector<SizeCost>>> MeasureCosts(Communicator& world, const Mesh& mesh);

// Returns the traffic of a collective between hosts with equally many ranks, in any order of additions, by the route
// that these costs choose. `name` is that of CollectiveOpName; `bytes` as for TrafficOf. InvalidArgument if the
// collective does not exist, or if the number of ranks is not between one and a million (2^20).
absl::StatusOr<Traffic> TrafficBetweenHosts(std::string_view name, int64_t bytes, int64_t hosts, int64_t ranks_a_host,
                                            const NetworkCosts& costs);

}  // namespace lockstep
