// Links over TCP. Another transport introduces the ranks to each other (mpi.h). A rank connects to a peer at its first
// send. Each connection carries data in one direction, so that the directions do not wait for each other. Data goes
// from the sender's buffer through the kernel to the receiver's buffer. An idle rank sleeps in the kernel.

#pragma once

#include <memory>
#include <vector>

#include "runtime/comm/network/links.h"
#include "runtime/comm/network/sockets.h"

namespace lockstep {

// Returns the links of `rank`. `listener` is its own; `listeners` are those of all ranks, by rank.
absl::StatusOr<std::unique_ptr<Links>> CreateSocketLinks(std::shared_ptr<SocketListener> listener, int rank,
                                                         std::vector<ListenerInfo> listeners,
                                                         std::vector<int> group_begins);

}  // namespace lockstep
