#include "runtime/communicator.h"

#include <algorithm>
#include <utility>

#include "core/status.h"

namespace lockstep {

Communicator::Communicator(int rank, std::vector<std::string> hosts, std::string transport, const Traits& traits)
    : rank_(rank), hosts_(std::move(hosts)), transport_(std::move(transport)), traits_(traits) {}

int Communicator::ranks_on_this_host() const {
  return static_cast<int>(std::count(hosts_.begin(), hosts_.end(), hosts_[rank_]));
}

int Communicator::rank_on_this_host() const {
  return static_cast<int>(std::count(hosts_.begin(), hosts_.begin() + rank_, hosts_[rank_]));
}

absl::Status Communicator::AllReduce(const void* input, void* output, int64_t count, DType dtype, ReduceKind kind,
                                     const Call& call) {
  ASSIGN_OR_RETURN(Ticket ticket, StartAllReduce(input, output, count, dtype, kind, call));
  return Wait(ticket, call.stream);
}

absl::Status Communicator::Broadcast(const void* input, void* output, int64_t count, DType dtype, int root,
                                     const Call& call) {
  ASSIGN_OR_RETURN(Ticket ticket, StartBroadcast(input, output, count, dtype, root, call));
  return Wait(ticket, call.stream);
}

absl::Status Communicator::AllGather(const void* input, void* output, int64_t count, DType dtype, const Call& call) {
  ASSIGN_OR_RETURN(Ticket ticket, StartAllGather(input, output, count, dtype, call));
  return Wait(ticket, call.stream);
}

absl::Status Communicator::ReduceScatter(const void* input, void* output, int64_t count, DType dtype, ReduceKind kind,
                                         const Call& call) {
  ASSIGN_OR_RETURN(Ticket ticket, StartReduceScatter(input, output, count, dtype, kind, call));
  return Wait(ticket, call.stream);
}

}  // namespace lockstep
