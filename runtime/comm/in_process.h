// Communicators whose ranks are threads of this process: for tests, for one process that trains with several ranks, and
// for worlds of size 1, where collectives are the identity.

#pragma once

#include <functional>
#include <memory>
#include <vector>

#include "absl/status/statusor.h"
#include "runtime/comm/network/links.h"
#include "runtime/comm/routes/route_choice.h"
#include "runtime/communicator.h"

namespace lockstep {

// Returns the n communicators of one world. Element r is for rank r, and one thread uses it. Requires n >= 1. They may
// be destroyed in any order, by any thread. A peer that waits for a destroyed one gets an error.
absl::StatusOr<std::vector<std::unique_ptr<Communicator>>> CreateInProcess(int n,
                                                                           const Communicator::Options& options = {});

// A function that wraps the links of a rank, to observe or disturb their messages.
using AroundLinks = std::function<std::unique_ptr<Links>(int rank, std::unique_ptr<Links>)>;

// The same, with ranks in groups that communicate only by TCP messages, as ranks on several hosts do. `group_begins`
// holds the first rank of each group, ascending from 0. For tests.
absl::StatusOr<std::vector<std::unique_ptr<Communicator>>> CreateInProcessGroups(
    int n, const std::vector<int>& group_begins, const Communicator::Options& options = {},
    const RoutePolicy& policy = {}, const AroundLinks& around = nullptr);

// Returns the communicator of a world of one rank.
absl::StatusOr<std::unique_ptr<Communicator>> CreateSingle();

}  // namespace lockstep
