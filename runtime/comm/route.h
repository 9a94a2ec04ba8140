// By which route the groups of a world get the result of a collective. The choice is the same on all ranks, as it
// depends on nothing that differs between them, and is part of what decides the bits of a sum. A pure function; any
// thread.
//
//   route   messages, one after the other    bytes that a group sends, of S in all     order of additions
//   chain   2 (groups - 1), pipelined        2 S at most                               ranks
//   owner   2                                2 S (groups - 1) / groups                 in each group, then groups
//   all     1                                S (groups - 1)                            in each group, then groups
//   pair    1                                what its ranks have for other groups      -
//
// Where each group is one rank owner and all add in the order of ranks, too. They send bf16 as such, where the chain
// sends f32: sums of groups of several ranks are rounded once more. Rabenseifner ("Optimization of collective reduction
// operations", 2004) and Thakur, Rabenseifner and Gropp ("Optimization of collective communication operations in
// MPICH", 2005) compare such routes; owner is their reduce-scatter with direct exchange.

#pragma once

#include <cstdint>

#include "runtime/comm/control_block.h"

namespace lockstep {

// Of two groups all is the better: the same bytes, and one message less.
enum class Route {
  kChain,  // partial results go up the chain of groups, results down; copies from their source both ways
  kOwner,  // each chunk has a group that gets all others' partial results, and sends them the result
  kAll,    // every group gets all others' partial results; copies go from their source to all
  kPair,   // a chunk that one rank has for another one goes from group to group; nothing else is sent
};

// What decides it besides the collective.
struct RouteOptions {
  int groups = 1;
  int largest_group = 1;       // ranks
  bool in_rank_order = false;  // additions have to be
};

// `world_size`: ranks.
Route RouteOf(const OpDescription& description, int world_size, const RouteOptions& options);

// What the table above says of one collective.
struct Travel {
  int messages = 0;    // one after the other
  uint64_t bytes = 0;  // that leave the group which sends most
};

// `bytes`: of the operand or of the result, whichever is larger. Of one group: nothing. Of a permute the most that
// pairs of ranks can make of it.
Travel TravelOf(Route route, Opcode opcode, uint64_t bytes, int groups, int ranks_a_group = 1);

}  // namespace lockstep
