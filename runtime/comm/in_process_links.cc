#include "runtime/comm/in_process_links.h"

#include <algorithm>
#include <cstring>
#include <deque>
#include <map>
#include <mutex>
#include <numeric>
#include <tuple>
#include <utility>

#include "core/status.h"

namespace lockstep {
namespace {

// What has been sent and not been received.
struct Mailboxes {
  std::mutex mutex;
  // Ranks are those of the world.
  std::map<std::tuple<int, int, uint32_t, int>, std::deque<MessageBuffer>>
      messages;                                                           // by sender, receiver, channel, tag
  std::map<std::pair<uint32_t, int>, std::deque<Links::Notice>> notices;  // by channel and receiver
};

class Sent final : public LinkRequest {
 public:
  absl::StatusOr<bool> Test() override { return true; }
};

class Receiving final : public LinkRequest {
 public:
  Receiving(Mailboxes* mailboxes, std::tuple<int, int, uint32_t, int> key, MessageBuffer buffer)
      : mailboxes_(*mailboxes), key_(key), buffer_(std::move(buffer)) {}

  absl::StatusOr<bool> Test() override {
    std::lock_guard<std::mutex> lock(mailboxes_.mutex);
    std::deque<MessageBuffer>& box = mailboxes_.messages[key_];
    if (box.empty()) return false;
    if (box.front()->size() != buffer_->size()) {
      return Internal() << "a message of " << box.front()->size() << " bytes where " << buffer_->size()
                        << " were expected";
    }
    *buffer_ = *box.front();
    box.pop_front();
    return true;
  }

 private:
  Mailboxes& mailboxes_;
  const std::tuple<int, int, uint32_t, int> key_;
  const MessageBuffer buffer_;
};

class InProcessLinks final : public Links {
 public:
  // `ranks`: the numbers in the world of the ranks, of which `rank` is this one's.
  InProcessLinks(std::shared_ptr<Mailboxes> mailboxes, int rank, std::vector<int> ranks, uint32_t channel,
                 std::vector<int> group_begins)
      : mailboxes_(std::move(mailboxes)),
        rank_(rank),
        ranks_(std::move(ranks)),
        channel_(channel),
        group_begins_(std::move(group_begins)) {}

  absl::StatusOr<std::unique_ptr<LinkRequest>> Send(int to_rank, int tag, MessageBuffer buffer) override {
    std::lock_guard<std::mutex> lock(mailboxes_->mutex);
    mailboxes_->messages[{ranks_[rank_], ranks_[to_rank], channel_, tag}].push_back(
        std::make_shared<std::vector<std::byte>>(*buffer));
    return std::make_unique<Sent>();
  }

  absl::StatusOr<std::unique_ptr<LinkRequest>> Receive(int from_rank, int tag, MessageBuffer buffer) override {
    return std::make_unique<Receiving>(mailboxes_.get(), std::tuple(ranks_[from_rank], ranks_[rank_], channel_, tag),
                                       std::move(buffer));
  }

  void SendNotice(int to_rank, const Notice& notice) override {
    std::lock_guard<std::mutex> lock(mailboxes_->mutex);
    // A status of its own for each receiver: copies share memory, and Abseil is not built for the thread sanitizer.
    mailboxes_->notices[{channel_, ranks_[to_rank]}].push_back(
        {.kind = notice.kind,
         .rank = notice.rank,
         .from = rank_,
         .status = absl::Status(notice.status.code(), notice.status.message())});
  }

  std::optional<Notice> PollNotice() override {
    std::lock_guard<std::mutex> lock(mailboxes_->mutex);
    std::deque<Notice>& box = mailboxes_->notices[{channel_, ranks_[rank_]}];
    if (box.empty()) return std::nullopt;
    Notice notice = box.front();
    box.pop_front();
    return notice;
  }

  absl::StatusOr<std::unique_ptr<Links>> Among(const std::vector<int>& ranks, uint32_t channel,
                                               std::vector<int> group_begins) const override {
    const int rank = static_cast<int>(std::find(ranks.begin(), ranks.end(), rank_) - ranks.begin());
    std::vector<int> in_world;
    for (int each : ranks) in_world.push_back(ranks_[each]);
    return std::make_unique<InProcessLinks>(mailboxes_, rank, std::move(in_world), channel, std::move(group_begins));
  }

  const std::vector<int>& group_begins() const override { return group_begins_; }

 private:
  const std::shared_ptr<Mailboxes> mailboxes_;  // shared by the ranks' links
  const int rank_;
  const std::vector<int> ranks_;
  const uint32_t channel_;
  const std::vector<int> group_begins_;
};

}  // namespace

std::vector<std::unique_ptr<Links>> CreateInProcessLinks(int world_size, const std::vector<int>& group_begins) {
  auto mailboxes = std::make_shared<Mailboxes>();
  std::vector<std::unique_ptr<Links>> links;
  std::vector<int> ranks(world_size);
  std::iota(ranks.begin(), ranks.end(), 0);
  for (int r = 0; r < world_size; ++r) {
    links.push_back(std::make_unique<InProcessLinks>(mailboxes, r, ranks, 0, group_begins));
  }
  return links;
}

}  // namespace lockstep
