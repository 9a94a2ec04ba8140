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
  std::map<std::tuple<int, int, int>, std::deque<std::vector<std::byte>>> messages;  // by sender, receiver, tag
  std::map<int, std::deque<Links::Notice>> notices;                                  // by receiver
};

class Sent final : public LinkRequest {
 public:
  absl::StatusOr<bool> Test() override { return true; }
};

class Receiving final : public LinkRequest {
 public:
  Receiving(Mailboxes* mailboxes, std::tuple<int, int, int> key, std::byte* data, size_t bytes)
      : mailboxes_(*mailboxes), key_(key), data_(data), bytes_(bytes) {}

  absl::StatusOr<bool> Test() override {
    std::lock_guard<std::mutex> lock(mailboxes_.mutex);
    std::deque<std::vector<std::byte>>& box = mailboxes_.messages[key_];
    if (box.empty()) return false;
    if (box.front().size() != bytes_) {
      return Internal() << "a message of " << box.front().size() << " bytes where " << bytes_ << " were expected";
    }
    std::memcpy(data_, box.front().data(), bytes_);
    box.pop_front();
    return true;
  }

 private:
  Mailboxes& mailboxes_;
  const std::tuple<int, int, int> key_;
  std::byte* const data_;
  const size_t bytes_;
};

class InProcessLinks final : public Links {
 public:
  InProcessLinks(std::shared_ptr<Mailboxes> mailboxes, int rank, std::vector<int> group_begins)
      : mailboxes_(std::move(mailboxes)), rank_(rank), group_begins_(std::move(group_begins)) {}

  absl::StatusOr<std::unique_ptr<LinkRequest>> Send(int to_rank, int tag, const std::byte* data,
                                                    size_t bytes) override {
    std::lock_guard<std::mutex> lock(mailboxes_->mutex);
    mailboxes_->messages[{rank_, to_rank, tag}].emplace_back(data, data + bytes);
    return std::make_unique<Sent>();
  }

  absl::StatusOr<std::unique_ptr<LinkRequest>> Receive(int from_rank, int tag, std::byte* data, size_t bytes) override {
    return std::make_unique<Receiving>(mailboxes_.get(), std::tuple(from_rank, rank_, tag), data, bytes);
  }

  void SendNotice(const Notice& notice) override {
    std::lock_guard<std::mutex> lock(mailboxes_->mutex);
    for (int first : group_begins_) {
      if (first == rank_) continue;
      // A status of its own for each receiver: copies share memory, and Abseil is not built for the thread sanitizer.
      mailboxes_->notices[first].push_back({notice.rank, absl::Status(notice.status.code(), notice.status.message())});
    }
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
