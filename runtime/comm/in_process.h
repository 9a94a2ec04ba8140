// Communicators whose ranks are threads of this process: for tests, for one process that trains with several ranks, and
// for size 1, where collectives are the identity.

#pragma once

#include <functional>
#include <memory>
#include <vector>

#include "absl/status/statusor.h"
#include "runtime/comm/network/links.h"
#include "runtime/comm/routes/route_choice.h"
#include "runtime/communicator.h"

namespace lockstep {

// n communicators of one world; element r is rank r's, to be used by one thread. Requires n >= 1. They may be destroyed
// in any order, by any thread; a peer that still waits for a destroyed one gets an error.
absl::StatusOr<std::vector<std::unique_ptr<Communicator>>> CreateInProcess(int n,
                                                                           const Communicator::Options& options = {});

// What is put around a rank's links, to see or disturb what passes.
using AroundLinks = std::function<std::unique_ptr<Links>(int rank, std::unique_ptr<Links>)>;

// The same, with ranks in groups that only exchange messages, by TCP, as ranks on several hosts do. `group_begins`
// holds the first rank of each group, ascending from 0. For tests.
absl::StatusOr<std::vector<std::unique_ptr<Communicator>>> CreateInProcessGroups(
    int n, const std::vector<int>& group_begins, const Communicator::Options& options = {},
    const RoutePolicy& policy = {}, const AroundLinks& around = nullptr);

// A world of one rank.
absl::StatusOr<std::unique_ptr<Communicator>> CreateSingle();

}  // namespace lockstep
