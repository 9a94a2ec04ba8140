#include "runtime/comm/network/exchange.h"

#include <algorithm>
#include <utility>

#include "core/status.h"

namespace lockstep {

absl::StatusOr<Exchange> Exchange::Begin(Links& links, const std::vector<int>& send_to,
                                         const std::vector<int>& receive_from, int tag, const MessageBuffer& mine) {
  Exchange exchange;
  for (int rank : receive_from) {
    exchange.received_.push_back(std::make_shared<MessageBytes>(mine->size()));
    ASSIGN_OR_RETURN(auto request, links.Receive(rank, tag, exchange.received_.back()));
    exchange.pending_.push_back({rank, std::move(request)});
  }
  for (int rank : send_to) {
    ASSIGN_OR_RETURN(auto request, links.Send(rank, tag, mine));
    exchange.pending_.push_back({rank, std::move(request)});
  }
  return exchange;
}

absl::StatusOr<bool> Exchange::Step() {
  bool progress = false;
  for (PendingRequest& pending : pending_) {
    ASSIGN_OR_RETURN(const bool complete, pending.request->Test());
    if (complete) pending.request.reset();
    progress = progress || complete;
  }
  std::erase_if(pending_, [](const PendingRequest& pending) { return pending.request == nullptr; });
  return progress;
}

std::vector<int> Exchange::Missing() const {
  std::vector<int> ranks;
  for (const PendingRequest& pending : pending_) {
    if (std::find(ranks.begin(), ranks.end(), pending.with) == ranks.end()) ranks.push_back(pending.with);
  }
  return ranks;
}

}  // namespace lockstep
