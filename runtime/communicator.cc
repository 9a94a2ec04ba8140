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

absl::Status Communicator::Run(const Collective& collective, const void* input, void* output, const Call& call) {
  ASSIGN_OR_RETURN(Ticket ticket, Start(collective, input, output, call));
  return Wait(ticket, call.stream);
}

}  // namespace lockstep
