// The files in which the costs of networks are kept that were measured, one for each cluster, so that the next job
// there takes the same routes and computes the same bits:
//
//   # What the network between these hosts takes, ...
//   format = 1
//   cluster = "h0*2 h1*2 h2*2 by tcp in 3 groups"
//   hosts = 3
//   ranks = 2
//   latency = 2.5e-05
//   ...
//   check = "89abcdef01234567"
//
// `check` is a hash of what is above it: a file that is damaged, or was changed by hand, is an error, and whoever meets
// it measures anew. A text is the same costs everywhere, to the last bit. Any thread.

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
  int ranks = 1;        // of the group that has most
  NetworkCosts costs = {};
};

// The hosts in the order of ranks, with the ranks of each, and what carries messages between them. `interfaces` are
// those that are asked for, or empty.
std::string ClusterName(const std::vector<std::string>& hosts_of_ranks, const std::string& transport,
                        const std::string& interfaces);

std::string ToText(const Network& network);
// InvalidArgument says what is wrong.
absl::StatusOr<Network> NetworkOf(const std::string& text);

// `folder` is CacheFolder(), or empty: nothing is kept.
std::string NetworkCachePath(const std::string& folder, const std::string& cluster);
// NotFound where there is no file; InvalidArgument, with the path, where there is one that cannot be used.
absl::StatusOr<Network> ReadNetwork(const std::string& folder, const std::string& cluster);
absl::Status WriteNetwork(const std::string& folder, const Network& network);
// All that can be read, by name of the file.
std::vector<Network> KnownNetworks(const std::string& folder);

}  // namespace lockstep
