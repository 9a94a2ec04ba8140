// What the network between the hosts of a world takes, for the choice of routes: measured where nobody has yet, and
// then remembered. It is part of what decides bits, so rank 0 alone says what it is.

#pragma once

#include <string>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "runtime/comm/rank_communicator.h"
#include "runtime/comm/routes/network_cache.h"

namespace lockstep {

// Whether costs decide anything in a world: not on one host, and not on two (route_choice.h).
bool NeedsCosts(const RankCommunicator& world);

// Times all_reduces of f32 that go to all and around the ring, small ones and large ones, and finds the costs by which
// TravelOf explains them, whatever order of additions `world` has. Takes about a quarter of a second, a second on a
// network of 100 Mb/s. All ranks call it together; rank 0's result counts. The routes of `world` are as they were at
// first afterwards.
absl::StatusOr<NetworkCosts> MeasureCosts(RankCommunicator& world);

// Lets `world` choose its routes by the costs of its network: rank 0's file in `folder` (network_cache.h) has them, or
// they are measured, which rank 0 then writes there. All ranks call it together, and have the same costs, whoever of
// them sees the file. A file that cannot be used or written is told on stderr, by rank 0.
absl::Status ChooseRoutes(RankCommunicator& world, const std::string& transport, const std::string& interfaces,
                          const std::string& folder);

}  // namespace lockstep
