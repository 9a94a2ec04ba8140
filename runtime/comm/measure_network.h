// The costs of the network between the hosts of a world, for the choice of routes. They are measured once and then
// cached. They influence the bits of results, so rank 0 alone decides them.

#pragma once

#include <string>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "runtime/comm/rank_communicator.h"
#include "runtime/comm/routes/network_cache.h"

namespace lockstep {

// Returns true if costs influence the routes of a world: with more than two hosts (route_choice.h).
bool NeedsCosts(const RankCommunicator& world);

// Times all_reduces of f32, small and large ones, that go to all and around the ring. Returns the costs with which
// TrafficOf explains the times, in whatever order `world` adds. Takes about a quarter of a second, or a second on a
// network of 100 Mb/s. All ranks call it together; rank 0's result counts. Resets the routes of `world` to their
// initial policy.
absl::StatusOr<NetworkCosts> MeasureCosts(RankCommunicator& world);

// Lets `world` choose its routes by the costs of its network. Rank 0 reads them from its file in `folder`
// (network_cache.h), or they are measured and rank 0 writes the file. All ranks call it together and get the same
// costs, even if only some of them can read the file. Rank 0 reports on stderr if a file cannot be used or written.
absl::Status ChooseRoutes(RankCommunicator& world, const std::string& transport, const std::string& interfaces,
                          const std::string& folder);

}  // namespace lockstep
