// The routes on which the groups of a world can get the result of a collective, and the traffic of each. route_choice.h
// chooses among them. Pure functions; any thread.
//
//   route    consecutive messages           bytes that a group sends, S in total   order of additions
//   chain    2 (groups - 1), pipelined      2 S at most                            ranks
//   owner    2                              2 S (groups - 1) / groups              in each group, then groups
//   all      1                              S (groups - 1)                         in each group, then groups
//   ring     2 (groups - 1)                 2 S (groups - 1) / groups              ranks, around, from the first behind
//                                                                                  the group that owns the chunk
//   halving  2 log2(groups)                 2 S (groups - 1) / groups              in each group, then a tree of groups
//   pair     1                              its ranks' data for other groups       -
//
// If each group is one rank, owner and all also add in rank order. Owner and all send bf16 as bf16, where the others
// send f32: sums of groups of several ranks are rounded once more. In a ring and along a chain, each group sends only
// to its neighbours. Halving, if the number of groups is not a power of two: the first groups form pairs, whose second
// group takes part for both, so that a power of two takes part. This costs 2 messages and S bytes more.
//
// Rabenseifner ("Optimization of collective reduction operations", 2004) and Thakur, Rabenseifner and Gropp
// ("Optimization of collective communication operations in MPICH", 2005) compare such routes. Owner is their
// reduce-scatter with direct exchange, halving their recursive halving and doubling.

#pragma once

#include <cstddef>
#include <cstdint>
#include <optional>
#include <string_view>
#include <vector>

#include "core/dtype.h"
#include "core/placement.h"
#include "runtime/comm/collective/chunks.h"
#include "runtime/comm/collective/description.h"

namespace lockstep {

// Between two groups, all is the best: the same bytes as owner, and one message less.
enum class Route {
  kChain,    // partial results go up the chain of groups, results down; copies go both ways from their source
  kOwner,    // each chunk has a group that receives the partial results of all others and sends them the result
  kAll,      // every group receives the partial results of all others; copies go from their source to all
  kRing,     // partial results go around to the chunk's owner, then results go around; copies go from their source
  kHalving,  // groups exchange halves of their data, with nearer groups in each round; then results in reverse
  kPair,     // a chunk from one rank to another goes directly from group to group; nothing else is sent
};
inline constexpr Route kRoutes[] = {Route::kChain, Route::kOwner,   Route::kAll,
                                    Route::kRing,  Route::kHalving, Route::kPair};

std::string_view RouteName(Route route);
std::optional<Route> RouteNamed(std::string_view name);

// Returns true if the collective can take this route.
bool CanGo(Route route, const CollectiveTraits& traits);

// Returns the size in bytes of an element of a partial result in a message.
size_t PartialSize(Route route, DType dtype, ReduceKind kind);

// Returns the greatest power of two that is at most `groups`. Requires groups >= 1.
int PowerOfTwoBelow(int groups);

// Returns the groups with which a group exchanges messages, ascending. The neighbours in the order of groups are always
// among them. So if groups call different collectives, two that exchange messages differ.
std::vector<int> PeerGroups(Route route, int group, int groups);

// The limits for splitting a collective into chunks (class Chunks).
struct ChunkLimits {
  size_t most = 0, least = 0;  // bytes
};
// `bytes` is the size of the operand or the result, whichever is larger. Owner and ring have equally many chunks for
// each rank. Halving splits its chunks itself and has one for each rank of a group.
ChunkLimits ChunkLimitsOf(Route route, uint64_t bytes, int groups, int largest_group);

// The traffic of one collective, as in the table above.
struct Traffic {
  int messages = 0;      // consecutive messages
  uint64_t bytes = 0;    // sent by the group that sends most
  double sent = 0;       // messages that one rank of that group sends
  uint64_t filling = 0;  // bytes that pass one after the other before all groups are busy
};

// `bytes` is the size of the operand or the result, whichever is larger. `widening` is the ratio of a partial result's
// size to it. Nothing for one group. For a permute, the maximum over all sets of pairs.
Traffic TrafficOf(Route route, CollectiveOp op, uint64_t bytes, int groups, int ranks_a_group = 1, int widening = 1);

// The costs of the network between groups, in seconds. The defaults are those of a network of 10 Gb/s.
struct NetworkCosts {
  double latency = 25e-6;             // of a message that a rank waits for
  double message = 1e-6;              // of the sender's processor, for each message
  double byte_to_all = 0.8e-9;        // for each byte that leaves a group while each group sends to all others
  double byte_to_neighbour = 0.8e-9;  // for each byte that leaves a group while each group sends to one
  bool operator==(const NetworkCosts&) const = default;
};

double Seconds(const Traffic& traffic, Route route, int groups, const NetworkCosts& costs);

}  // namespace lockstep
