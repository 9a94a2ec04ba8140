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

absl::Status Communicator::AllGather(const void* input, void* output, std::span<const int64_t> counts, DType dtype,
                                     const Call& call) {
  ASSIGN_OR_RETURN(Ticket ticket, StartAllGather(input, output, counts, dtype, call));
  return Wait(ticket, call.stream);
}

absl::Status Communicator::AllGather(const void* input, void* output, int64_t count, DType dtype, const Call& call) {
  return AllGather(input, output, std::span(&count, 1), dtype, call);
}

absl::Status Communicator::ReduceScatter(const void* input, void* output, std::span<const int64_t> counts, DType dtype,
                                         ReduceKind kind, const Call& call) {
  ASSIGN_OR_RETURN(Ticket ticket, StartReduceScatter(input, output, counts, dtype, kind, call));
  return Wait(ticket, call.stream);
}

absl::Status Communicator::ReduceScatter(const void* input, void* output, int64_t count, DType dtype, ReduceKind kind,
                                         const Call& call) {
  return ReduceScatter(input, output, std::span(&count, 1), dtype, kind, call);
}

absl::Status Communicator::AllToAll(const void* input, void* output, int64_t count, DType dtype, const Call& call) {
  ASSIGN_OR_RETURN(Ticket ticket, StartAllToAll(input, output, count, dtype, call));
  return Wait(ticket, call.stream);
}

absl::Status Communicator::Permute(const void* input, void* output, int64_t count, DType dtype,
                                   std::span<const RankPair> pairs, const Call& call) {
  ASSIGN_OR_RETURN(Ticket ticket, StartPermute(input, output, count, dtype, pairs, call));
  return Wait(ticket, call.stream);
}

absl::Status Communicator::Gather(const void* input, void* output, int64_t count, DType dtype, int root,
                                  const Call& call) {
  ASSIGN_OR_RETURN(Ticket ticket, StartGather(input, output, count, dtype, root, call));
  return Wait(ticket, call.stream);
}

absl::Status Communicator::Scatter(const void* input, void* output, int64_t count, DType dtype, int root,
                                   const Call& call) {
  ASSIGN_OR_RETURN(Ticket ticket, StartScatter(input, output, count, dtype, root, call));
  return Wait(ticket, call.stream);
}

}  // namespace lockstep
