// Communicators of ranks that were introduced to each other: ranks on one host share memory, and ranks on different
// hosts have TCP connections. The introduction is not needed afterwards.

#pragma once

#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "runtime/cache_file.h"
#include "runtime/comm/network/links.h"
#include "runtime/comm/routes/route.h"
#include "runtime/comm/world/introduction.h"
#include "runtime/communicator.h"

namespace lockstep {

struct WorldOptions {
  Communicator::Options communicator;
  // The largest number of consecutive ranks that are treated as being on one host, so that one machine can test the
  // communication between hosts. 0: no limit.
  int max_group = 0;
  // The carrier of messages between hosts, equal on all ranks: TCP connections (socket_links.h), or MPI (mpi_links.h),
  // which supports networks that are faster than TCP.
  enum class BetweenHosts : int32_t { kTcp, kMpi };
  BetweenHosts between_hosts = BetweenHosts::kTcp;
  // The costs for the choice of routes between more than two hosts, equal on all ranks: the costs that were measured
  // when these hosts first formed a world (measure_network.h), or the defaults of NetworkCosts.
  enum class Routes : int32_t { kMeasured, kDefault };
  Routes routes = Routes::kMeasured;
  // The folder in which rank 0 keeps the measured costs; empty: they are not kept.
  std::string cache_folder = CacheFolder();
  // For tests: the route that is taken wherever possible, without measuring; and a function that wraps a rank's links.
  std::optional<Route> preferred_route = {};
  std::function<std::unique_ptr<Links>(std::unique_ptr<Links>)> around_links = {};
};

// What an introduction adds to its worlds.
struct WorldKind {
  std::string transport;  // "mpi", in Communicator::transport
  // Makes the links of BetweenHosts::kMpi, without waiting for other ranks. Empty: only TCP carries messages.
  std::function<absl::StatusOr<std::unique_ptr<Links>>(std::vector<int> group_begins)> links = {};
  // Called when this rank leaves the world, with the reason for which the world has failed; OK if it has not.
  std::function<void(const absl::Status& failure)> on_leave = {};
};

// Returns the communicator of this rank. Collective over the introduced ranks: it succeeds on all of them or on none.
// TCP uses all network interfaces that are up, or those that the environment variable LOCKSTEP_INTERFACE names ("eth0",
// "ib,eth": prefixes of names, separated by commas).
absl::StatusOr<std::unique_ptr<Communicator>> CreateWorld(Introduction& introduction, const WorldOptions& options,
                                                          WorldKind kind);

}  // namespace lockstep
