// The files with the measured costs of networks, one for each cluster, so that the next job there takes the same routes
// and computes the same bits:
//
//   # The costs of the network between these hosts, ...
//   format = 1
//   cluster = "h0*2 h1*2 h2*2 by tcp in 3 groups"
//   hosts = 3
//   ranks = 2
//   latency = 2.5e-05
//   ...
//   check = "89abcdef01234567"
//
// `check` is a hash of the text above it. A file that is damaged, or was changed by hand, is an error, and the reader
// measures again. A text represents the costs exactly on all machines. Any thread.

#pragma once

#include <optional>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "runtime/comm/routes/route.h"

namespace lockstep {

// The network of a cluster.
struct Network {
  std::string cluster;  // ClusterName
  int hosts = 1;        // groups of ranks that share memory
  int ranks = 1;        // of the largest group
  NetworkCosts costs = {};
};

// Returns a name with the hosts in the order of ranks, the number of ranks on each, and the carrier of messages between
// them. `interfaces` are the requested ones, or empty.
std::string ClusterName(const std::vector<std::string>& hosts_of_ranks, const std::string& transport,
                        const std::string& interfaces);

std::string ToText(const Network& network);
// InvalidArgument names the error.
absl::StatusOr<Network> NetworkOf(const std::string& text);

// `folder` is CacheFolder(); empty: nothing is kept.
std::string NetworkCachePath(const std::string& folder, const std::string& cluster);
// NotFound if there is no file. InvalidArgument, with the path, if the file cannot be used.
absl::StatusOr<Network> ReadNetwork(const std::string& folder, const std::string& cluster);
absl::Status WriteNetwork(const std::string& folder, const Network& network);
// Returns all readable networks, by name of the file.
std::vector<Network> KnownNetworks(const std::string& folder);

}  // namespace lockstep
