#include "runtime/comm/in_process_links.h"

#include <cstring>
#include <deque>
#include <map>
#include <mutex>
#include <tuple>
#include <utility>

#include "core/status.h"

namespace lockstep {
namespace {

// What has been sent and not been received.
struct Mailboxes {
  std::mutex mutex;
  std::map<std::tuple<int, int, int>, std::deque<MessageBuffer>> messages;  // by sender, receiver, tag
  std::map<int, std::deque<Links::Notice>> notices;                         // by receiver
};

class Sent final : public LinkRequest {
 public:
  absl::StatusOr<bool> Test() override { return true; }
};

class Receiving final : public LinkRequest {
 public:
  Receiving(Mailboxes* mailboxes, std::tuple<int, int, int> key, MessageBuffer buffer)
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
  const std::tuple<int, int, int> key_;
  const MessageBuffer buffer_;
};

class InProcessLinks final : public Links {
 public:
  InProcessLinks(std::shared_ptr<Mailboxes> mailboxes, int rank, std::vector<int> group_begins)
      : mailboxes_(std::move(mailboxes)), rank_(rank), group_begins_(std::move(group_begins)) {}

  absl::StatusOr<std::unique_ptr<LinkRequest>> Send(int to_rank, int tag, MessageBuffer buffer) override {
    std::lock_guard<std::mutex> lock(mailboxes_->mutex);
    mailboxes_->messages[{rank_, to_rank, tag}].push_back(std::make_shared<std::vector<std::byte>>(*buffer));
    return std::make_unique<Sent>();
  }

  absl::StatusOr<std::unique_ptr<LinkRequest>> Receive(int from_rank, int tag, MessageBuffer buffer) override {
    return std::make_unique<Receiving>(mailboxes_.get(), std::tuple(from_rank, rank_, tag), std::move(buffer));
  }

  void SendNotice(int to_rank, const Notice& notice) override {
    std::lock_guard<std::mutex> lock(mailboxes_->mutex);
    // A status of its own for each receiver: copies share memory, and Abseil is not built for the thread sanitizer.
    mailboxes_->notices[to_rank].push_back({.kind = notice.kind,
                                            .rank = notice.rank,
                                            .from = rank_,
                                            .status = absl::Status(notice.status.code(), notice.status.message())});
  }

  std::optional<Notice> PollNotice() override {
    std::lock_guard<std::mutex> lock(mailboxes_->mutex);
    std::deque<Notice>& box = mailboxes_->notices[rank_];
    if (box.empty()) return std::nullopt;
    Notice notice = box.front();
    box.pop_front();
    return notice;
  }

  const std::vector<int>& group_begins() const override { return group_begins_; }

 private:
  const std::shared_ptr<Mailboxes> mailboxes_;  // shared by the ranks' links
  const int rank_;
  const std::vector<int> group_begins_;
};

}  // namespace

std::vector<std::unique_ptr<Links>> CreateInProcessLinks(int world_size, const std::vector<int>& group_begins) {
  auto mailboxes = std::make_shared<Mailboxes>();
  std::vector<std::unique_ptr<Links>> links;
  for (int r = 0; r < world_size; ++r) links.push_back(std::make_unique<InProcessLinks>(mailboxes, r, group_begins));
  return links;
}

}  // namespace lockstep
