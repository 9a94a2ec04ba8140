// By which routes the groups of a world can get the result of a collective, and what each takes. Which one is taken,
// route_choice.h says. Pure functions; any thread.
//
//   route    messages, one after the other  bytes that a group sends, of S in all  order of additions
//   chain    2 (groups - 1), pipelined      2 S at most                            ranks
//   owner    2                              2 S (groups - 1) / groups              in each group, then groups
//   all      1                              S (groups - 1)                         in each group, then groups
//   ring     2 (groups - 1)                 2 S (groups - 1) / groups              ranks, around, from the first behind
//                                                                                  the group that owns the chunk
//   halving  2 log2(groups)                 2 S (groups - 1) / groups              in each group, then a tree of groups
//   pair     1                              what its ranks have for other groups   -
//
// Where each group is one rank owner and all add in the order of ranks, too. They send bf16 as such, where the others
// send f32: sums of groups of several ranks are rounded once more. In a ring and along a chain each group sends to its
// neighbours alone. Halving, if the groups are no power of two, p the one below: the first groups stand together in
// pairs, of which the second takes part for both, which is 2 messages and S bytes more.
//
// Rabenseifner ("Optimization of collective reduction operations", 2004) and Thakur, Rabenseifner and Gropp
// ("Optimization of collective communication operations in MPICH", 2005) compare such routes; owner is their
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

// Of two groups all is the better: the same bytes, and one message less.
enum class Route {
  kChain,    // partial results go up the chain of groups, results down; copies from their source both ways
  kOwner,    // each chunk has a group that gets all others' partial results, and sends them the result
  kAll,      // every group gets all others' partial results; copies go from their source to all
  kRing,     // partial results go around to the chunk's owner, results from there once more; copies from their source
  kHalving,  // groups swap halves of what each has left to add, nearer ones each time; then results, the other way
  kPair,     // a chunk that one rank has for another one goes from group to group; nothing else is sent
};
inline constexpr Route kRoutes[] = {Route::kChain, Route::kOwner,   Route::kAll,
                                    Route::kRing,  Route::kHalving, Route::kPair};

std::string_view RouteName(Route route);
std::optional<Route> RouteNamed(std::string_view name);

// Whether a collective can go this way at all.
bool CanGo(Route route, const CollectiveTraits& traits);

// The bytes of an element of a partial result on its way.
size_t PartialSize(Route route, DType dtype, ReduceKind kind);

// The greatest power of two that is no more than `groups`, which is at least 1.
int PowerOfTwoBelow(int groups);

// The groups with which a group exchanges something, ascending. Those next to it in the order of groups are among them
// whatever the route, so that of groups that do different things some two that exchange something do.
std::vector<int> PeersOf(Route route, int group, int groups);

// How a collective is cut into chunks: see Chunks.
struct ChunkLimits {
  size_t most = 0, least = 0;  // bytes
};
// `bytes`: of the operand or of the result, whichever is larger. Owners and rings have as many chunks for each rank;
// halving cuts its chunks itself, and has one for each rank of a group.
ChunkLimits ChunkLimitsOf(Route route, uint64_t bytes, int groups, int largest_group);

// What the table above says of one collective.
struct Travel {
  int messages = 0;      // one after the other
  uint64_t bytes = 0;    // that leave the group which sends most
  double sent = 0;       // messages of one of that group's ranks
  uint64_t filling = 0;  // bytes that pass one after the other before all groups are busy
};

// `bytes`: of the operand or of the result, whichever is larger; `widening`: how many times as many a partial result
// has. Of one group: nothing. Of a permute the most that pairs of ranks can make of it.
Travel TravelOf(Route route, CollectiveOp op, uint64_t bytes, int groups, int ranks_a_group = 1, int widening = 1);

// What the network between groups takes, in seconds. The defaults are of one of 10 Gb/s.
struct NetworkCosts {
  double latency = 25e-6;             // of a message that somebody waits for
  double message = 1e-6;              // of the sender's processor, for each
  double byte_to_all = 0.8e-9;        // that leaves a group while each sends to all others
  double byte_to_neighbour = 0.8e-9;  // that leaves a group while each sends to one
  bool operator==(const NetworkCosts&) const = default;
};

double Seconds(const Travel& travel, Route route, int groups, const NetworkCosts& costs);

}  // namespace lockstep
