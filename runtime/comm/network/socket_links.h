// Links over TCP, beside what introduced the ranks to each other (mpi.h). A rank connects to a peer when it first sends
// to it; each connection carries data one way, so that what travels up and what travels down do not wait for each
// other. Bytes go from the sender's buffer to the kernel and from there to the receiver's, and a rank that has nothing
// to do sleeps in the kernel.

#pragma once

#include <memory>
#include <vector>

#include "runtime/comm/network/links.h"
#include "runtime/comm/network/sockets.h"

namespace lockstep {

// The links of `rank`, whose own listener it is. `places`: of all ranks, by rank.
absl::StatusOr<std::unique_ptr<Links>> CreateSocketLinks(std::shared_ptr<SocketListener> listener, int rank,
                                                         std::vector<SocketPlace> places,
                                                         std::vector<int> group_begins);

}  // namespace lockstep
