#include "runtime/comm/conformance/watched_links.h"

#include <algorithm>
#include <cstring>
#include <map>
#include <utility>
#include <vector>

#include "core/status.h"
#include "runtime/comm/transfer/transfer.h"

namespace lockstep {
namespace {

using Clock = uint32_t;

class WatchedLinks final : public Links {
 public:
  WatchedLinks(std::unique_ptr<Links> links, Watched* watched) : links_(std::move(links)), watched_(watched) {}

  absl::StatusOr<std::unique_ptr<LinkRequest>> Send(int to_rank, int tag, MessageBuffer buffer) override {
    const bool is_chunk = tag < static_cast<int>(2 * kChunkTags);
    auto message = std::make_shared<MessageBytes>(buffer->size() + sizeof(Clock));
    const Clock clock = is_chunk ? ClockOf(tag) + 1 : 0;
    std::memcpy(message->data(), buffer->data(), buffer->size());
    std::memcpy(message->data() + buffer->size(), &clock, sizeof(clock));
    if (is_chunk) {
      watched_->bytes += buffer->size();
      ++watched_->sent;
      watched_->messages = std::max<Clock>(watched_->messages, clock);
    }
    return links_->Send(to_rank, tag, std::move(message));
  }

  absl::StatusOr<std::unique_ptr<LinkRequest>> Receive(int from_rank, int tag, MessageBuffer buffer) override {
    auto message = std::make_shared<MessageBytes>(buffer->size() + sizeof(Clock));
    ASSIGN_OR_RETURN(std::unique_ptr<LinkRequest> request, links_->Receive(from_rank, tag, message));
    return std::make_unique<Request>(this, tag, std::move(request), std::move(message), std::move(buffer));
  }

  void Progress(absl::Duration limit) override { links_->Progress(limit); }
  absl::Status Lost(int rank) const override { return links_->Lost(rank); }
  void SendNotice(int to_rank, const Notice& notice) override { links_->SendNotice(to_rank, notice); }
  std::optional<Notice> PollNotice() override { return links_->PollNotice(); }
  absl::StatusOr<std::unique_ptr<Links>> Among(const std::vector<int>& ranks, uint32_t channel,
                                               std::vector<int> group_begins) const override {
    ASSIGN_OR_RETURN(std::unique_ptr<Links> links, links_->Among(ranks, channel, std::move(group_begins)));
    return WatchLinks(std::move(links), watched_);
  }
  const std::vector<int>& group_begins() const override { return links_->group_begins(); }

 private:
  class Request final : public LinkRequest {
   public:
    Request(WatchedLinks* links, int tag, std::unique_ptr<LinkRequest> request, MessageBuffer message,
            MessageBuffer buffer)
        : links_(links),
          tag_(tag),
          request_(std::move(request)),
          message_(std::move(message)),
          buffer_(std::move(buffer)) {}

    absl::StatusOr<bool> Test() override {
      ASSIGN_OR_RETURN(const bool here, request_->Test());
      if (!here) return false;
      Clock clock = 0;
      std::memcpy(buffer_->data(), message_->data(), buffer_->size());
      std::memcpy(&clock, message_->data() + buffer_->size(), sizeof(clock));
      Clock& own = links_->ClockOf(tag_);
      own = std::max(own, clock);
      links_->watched_->messages = std::max<Clock>(links_->watched_->messages, clock);
      return true;
    }

   private:
    WatchedLinks* const links_;
    const int tag_;
    const std::unique_ptr<LinkRequest> request_;
    const MessageBuffer message_, buffer_;
  };

  // Returns the clock of the chunk with this tag. Reset together with `watched`, while nothing is in flight.
  Clock& ClockOf(int tag) {
    if (watched_->messages == 0) clocks_.clear();
    return clocks_[tag / 2];
  }

  const std::unique_ptr<Links> links_;
  Watched* const watched_;
  std::map<int, Clock> clocks_;
};

}  // namespace

std::unique_ptr<Links> WatchLinks(std::unique_ptr<Links> links, Watched* watched) {
  return std::make_unique<WatchedLinks>(std::move(links), watched);
}

}  // namespace lockstep
