#include "runtime/comm/network/socket_links.h"

#include <sys/epoll.h>
#include <sys/uio.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstring>
#include <deque>
#include <map>
#include <numeric>
#include <optional>
#include <utility>

#include "core/status.h"
#include "runtime/comm/network/notice_message.h"
#include "runtime/process/clock.h"

namespace lockstep {
namespace {

constexpr uint32_t kNoticeTag = 1 << 15;                       // above the tags of messages
constexpr size_t kReadAhead = 16 * 1024;                       // for a connection: several small messages in one call
constexpr size_t kMostAtOnce = 1 << 20;                        // from one connection, before others are read
constexpr int kMostParts = 32;                                 // of one call that sends
constexpr uint32_t kWantsToWrite = EPOLLOUT | EPOLLRDHUP;      // for a connection whose peer reads too slowly
constexpr absl::Duration kFarewell = absl::Milliseconds(200);  // for unsent messages at destruction

// The header of each message.
struct Frame {
  uint32_t tag = 0;
  uint32_t unused = 0;
  uint64_t bytes = 0;
};

// A send or a receive, shared by the links and the caller's request.
struct PendingMessage {
  MessageBuffer buffer;
  bool done = false;
  absl::Status status;  // the error of a message with an unexpected size
};

class SocketRequest final : public LinkRequest {
 public:
  explicit SocketRequest(std::shared_ptr<PendingMessage> pending) : pending_(std::move(pending)) {}
  absl::StatusOr<bool> Test() override {
    RETURN_IF_ERROR(pending_->status);
    return pending_->done;
  }

 private:
  const std::shared_ptr<PendingMessage> pending_;
};

// The messages to one rank.
struct Outgoing {
  int to = -1;
  std::unique_ptr<Connecting> connecting;  // until the connection is established
  Descriptor connection;
  struct Message {
    Frame frame;
    std::shared_ptr<PendingMessage> pending;
    size_t sent = 0;  // bytes, including the frame
  };
  std::deque<Message> queue;
  bool is_fresh = false;     // a message was queued since the last write
  int watched = -1;          // the descriptor in the epoll set
  uint32_t watched_for = 0;  // the events for which it is watched
};

// The messages from one rank over one connection.
struct Incoming {
  int from = -1;
  Descriptor connection;
  std::vector<std::byte> ahead = std::vector<std::byte>(kReadAhead);
  size_t ahead_begin = 0, ahead_end = 0;  // bytes that are read and not yet processed
  Frame frame;
  size_t frame_got = 0;
  std::shared_ptr<PendingMessage> pending;  // for the message that is being read
  bool is_awaited = false;                  // a receive was waiting when the message began
  size_t got = 0;                           // of its bytes
};

class SocketLinks final : public Links {
 public:
  // `ranks`: the ranks' numbers in the world; `here` is this one's index in it. `listeners` are by number in the world.
  SocketLinks(std::shared_ptr<SocketListener> listener, int here,
              std::shared_ptr<const std::vector<ListenerInfo>> listeners, std::vector<int> ranks, uint32_t channel,
              std::vector<int> group_begins)
      : listener_(std::move(listener)),
        here_(here),
        listeners_(std::move(listeners)),
        ranks_(std::move(ranks)),
        channel_(channel),
        group_begins_(std::move(group_begins)),
        outgoing_(ranks_.size()),
        lost_(ranks_.size()) {
    for (size_t i = 0; i < outgoing_.size(); ++i) outgoing_[i].to = static_cast<int>(i);
  }

  absl::Status Open() {
    poll_ = Descriptor(epoll_create1(EPOLL_CLOEXEC));
    if (!poll_) return ErrorStream(absl::StatusCode::kUnavailable) << "epoll_create1: " << std::strerror(errno);
    event_ = listener_->Open(channel_);
    for (int descriptor : {listener_->descriptor(), event_}) {
      if (descriptor < 0) return ErrorStream(absl::StatusCode::kUnavailable) << "eventfd: " << std::strerror(errno);
      epoll_event event{.events = EPOLLIN, .data = {.fd = descriptor}};
      if (epoll_ctl(poll_.get(), EPOLL_CTL_ADD, descriptor, &event) != 0)
        return ErrorStream(absl::StatusCode::kUnavailable) << "epoll_ctl: " << std::strerror(errno);
    }
    return absl::OkStatus();
  }

  ~SocketLinks() override {
    const absl::Duration end = SteadyNow() + kFarewell;
    const auto has_more = [this](const Outgoing& out) { return !out.queue.empty() && lost_[out.to].ok(); };
    Progress(absl::ZeroDuration());  // sends most messages at once; then there is no wait
    while (std::any_of(outgoing_.begin(), outgoing_.end(), has_more) && SteadyNow() < end) Progress(end - SteadyNow());
    listener_->Close(channel_);
  }

  absl::StatusOr<std::unique_ptr<LinkRequest>> Send(int to_rank, int tag, MessageBuffer buffer) override {
    return Post(to_rank, static_cast<uint32_t>(tag), std::move(buffer));
  }

  absl::StatusOr<std::unique_ptr<LinkRequest>> Receive(int from_rank, int tag, MessageBuffer buffer) override {
    auto pending = std::make_shared<PendingMessage>();
    pending->buffer = std::move(buffer);
    const auto key = std::pair(from_rank, static_cast<uint32_t>(tag));
    const auto unexpected = unexpected_.find(key);
    if (unexpected == unexpected_.end()) {
      awaited_[key].push_back(pending);
      return std::make_unique<SocketRequest>(std::move(pending));
    }
    const MessageBuffer message = std::move(unexpected->second.front());
    unexpected->second.pop_front();
    if (unexpected->second.empty()) unexpected_.erase(unexpected);
    RETURN_IF_ERROR(CheckSize(message->size(), pending->buffer->size()));
    *pending->buffer = std::move(*message);
    pending->done = true;
    return std::make_unique<SocketRequest>(std::move(pending));
  }

  void Progress(absl::Duration limit) override {
    for (Outgoing& out : outgoing_) {
      if (std::exchange(out.is_fresh, false)) Write(out);
    }
    epoll_event events[32];
    // A time in the past counts as 0: with a negative time, epoll_wait would wait for ever.
    int milliseconds = static_cast<int>(absl::ToInt64Milliseconds(std::max(limit, absl::ZeroDuration())));
    for (const Outgoing& out : outgoing_) {
      if (out.connecting == nullptr) continue;
      milliseconds = std::min<int>(milliseconds, static_cast<int>(absl::ToInt64Milliseconds(std::max(
                                                     out.connecting->deadline() - SteadyNow(), absl::ZeroDuration()))));
    }
    const int count = epoll_wait(poll_.get(), events, std::size(events), milliseconds);
    bool has_arrivals = false;
    for (int i = 0; i < count; ++i) {
      const int descriptor = events[i].data.fd;
      if (descriptor == listener_->descriptor()) listener_->Accept();
      if (descriptor == listener_->descriptor() || descriptor == event_) has_arrivals = true;
      else if (const auto in = incoming_.find(descriptor); in != incoming_.end()) Read(in->second);
      else if (const auto out = by_descriptor_.find(descriptor); out != by_descriptor_.end())
        Attend(outgoing_[out->second], events[i].events);
    }
    if (has_arrivals) Welcome();
    for (Outgoing& out : outgoing_) {
      if (out.connecting != nullptr && SteadyNow() >= out.connecting->deadline()) Write(out);
    }
  }

  void Wake() override {
    const uint64_t one = 1;
    (void)!write(event_, &one, sizeof(one));
  }

  absl::Status Lost(int rank) const override { return lost_[rank]; }

  void SendNotice(int to_rank, const Notice& notice) override {
    (void)Post(to_rank, kNoticeTag, NoticeMessage::Of(notice));  // no one waits for it
  }

  std::optional<Notice> PollNotice() override {
    Progress(absl::ZeroDuration());
    if (notices_.empty()) return std::nullopt;
    Notice notice = std::move(notices_.front());
    notices_.pop_front();
    return notice;
  }

  absl::StatusOr<std::unique_ptr<Links>> Among(const std::vector<int>& ranks, uint32_t channel,
                                               std::vector<int> group_begins) const override {
    const int here = static_cast<int>(std::find(ranks.begin(), ranks.end(), here_) - ranks.begin());
    std::vector<int> in_world;
    for (int each : ranks) in_world.push_back(ranks_[each]);
    auto links = std::make_unique<SocketLinks>(listener_, here, listeners_, std::move(in_world), channel,
                                               std::move(group_begins));
    RETURN_IF_ERROR(links->Open());
    return links;
  }

  const std::vector<int>& group_begins() const override { return group_begins_; }

 private:
  static absl::Status CheckSize(uint64_t found, uint64_t expected) {
    if (found == expected) return absl::OkStatus();
    return ErrorStream(absl::StatusCode::kOutOfRange)
           << "a message of " << found << " bytes where " << expected << " were expected";
  }

  // Returns the Status of a kernel error. 0: the peer closed the connection, on purpose or because its process ended.
  static absl::Status ConnectionError(int error) {
    return absl::UnavailableError(error == 0 ? "its connection is closed"
                                             : std::string("its connection is lost: ") + std::strerror(error));
  }

  std::unique_ptr<LinkRequest> Post(int to_rank, uint32_t tag, MessageBuffer buffer) {
    auto pending = std::make_shared<PendingMessage>();
    pending->buffer = std::move(buffer);
    Outgoing& out = outgoing_[to_rank];
    if (lost_[to_rank].ok()) {
      out.queue.push_back({.frame = {.tag = tag, .bytes = pending->buffer->size()}, .pending = pending});
      // Not while the kernel's buffer is full: epoll reports when it has space.
      out.is_fresh = out.watched_for != kWantsToWrite;
    }
    return std::make_unique<SocketRequest>(std::move(pending));
  }

  // Handles events of a connection, established or not.
  void Attend(Outgoing& out, uint32_t events) {
    if (out.connection && (events & (EPOLLERR | EPOLLHUP | EPOLLRDHUP)) != 0) {
      int error = 0;
      socklen_t length = sizeof(error);
      (void)getsockopt(out.connection.get(), SOL_SOCKET, SO_ERROR, &error, &length);
      return Lose(out, ConnectionError(error));
    }
    Write(out);
  }

  // Connects if necessary, and sends as much as the kernel accepts.
  void Write(Outgoing& out) {
    if (!lost_[out.to].ok()) return;
    if (!out.connection) {
      if (out.connecting == nullptr) {
        const ListenerInfo& peer = (*listeners_)[ranks_[out.to]];
        out.connecting =
            std::make_unique<Connecting>(WaysTo((*listeners_)[ranks_[here_]], peer), peer,
                                         Greeting{.nonce = peer.nonce, .channel = channel_, .from = ranks_[here_]});
      }
      const absl::StatusOr<bool> is_there = out.connecting->Step();
      if (!is_there.ok()) return Lose(out, is_there.status());
      if (!*is_there)
        return Watch(out, out.connecting->descriptor(), out.connecting->wants_to_write() ? EPOLLOUT : EPOLLIN);
      out.connection = out.connecting->Release();
      out.connecting.reset();
    }
    while (!out.queue.empty()) {
      iovec parts[kMostParts];
      msghdr header{};
      header.msg_iov = parts;
      for (auto message = out.queue.begin(); message != out.queue.end() && header.msg_iovlen + 2 <= kMostParts;
           ++message)
        header.msg_iovlen += PartsOf(*message, parts + header.msg_iovlen);
      const ssize_t sent = sendmsg(out.connection.get(), &header, MSG_NOSIGNAL);
      if (sent < 0 && (errno == EAGAIN || errno == EWOULDBLOCK || errno == EINTR))
        return Watch(out, out.connection.get(), kWantsToWrite);
      if (sent < 0) return Lose(out, ConnectionError(errno));
      MarkSent(out, static_cast<size_t>(sent));
    }
    Watch(out, out.connection.get(), EPOLLRDHUP);
  }

  // Sets `parts` to the unsent bytes of the message, in at most two parts. Returns their number.
  static size_t PartsOf(Outgoing::Message& message, iovec* parts) {
    MessageBytes& payload = *message.pending->buffer;
    size_t count = 0;
    if (message.sent < sizeof(Frame)) {
      parts[count++] = {reinterpret_cast<std::byte*>(&message.frame) + message.sent, sizeof(Frame) - message.sent};
    }
    const size_t begin = std::max(message.sent, sizeof(Frame)) - sizeof(Frame);
    if (begin < payload.size()) parts[count++] = {payload.data() + begin, payload.size() - begin};
    return count;
  }

  // Records that `bytes` of the queue have been sent.
  static void MarkSent(Outgoing& out, size_t bytes) {
    while (bytes > 0) {
      Outgoing::Message& message = out.queue.front();
      const size_t whole = sizeof(Frame) + message.pending->buffer->size();
      const size_t gone = std::min(bytes, whole - message.sent);
      message.sent += gone;
      bytes -= gone;
      if (message.sent < whole) return;
      message.pending->done = true;
      out.queue.pop_front();
    }
  }

  // Watches the descriptor for `events`, and for errors.
  void Watch(Outgoing& out, int descriptor, uint32_t events) {
    if (out.watched == descriptor && out.watched_for == events) return;
    epoll_event event{.events = events, .data = {.fd = descriptor}};
    if (out.watched != descriptor && out.watched >= 0) by_descriptor_.erase(out.watched);
    // A closed descriptor is no longer watched, and another may have its number.
    if (epoll_ctl(poll_.get(), EPOLL_CTL_MOD, descriptor, &event) != 0)
      (void)epoll_ctl(poll_.get(), EPOLL_CTL_ADD, descriptor, &event);
    by_descriptor_[descriptor] = out.to;
    out.watched = descriptor;
    out.watched_for = events;
  }

  void Lose(Outgoing& out, const absl::Status& why) {
    if (lost_[out.to].ok()) lost_[out.to] = why;
    if (out.watched >= 0) by_descriptor_.erase(out.watched);
    out.watched = -1;
    out.connecting.reset();
    out.connection = Descriptor();
    out.queue.clear();
  }

  // Adds the connections that peers have made to this rank.
  void Welcome() {
    for (SocketListener::Arrival& arrival : listener_->Take(channel_)) {
      const auto from = std::find(ranks_.begin(), ranks_.end(), arrival.from);
      if (from == ranks_.end()) continue;
      const int descriptor = arrival.connection.get();
      epoll_event event{.events = EPOLLIN, .data = {.fd = descriptor}};
      if (epoll_ctl(poll_.get(), EPOLL_CTL_ADD, descriptor, &event) != 0) continue;
      Incoming& in = incoming_[descriptor];
      in.from = static_cast<int>(from - ranks_.begin());
      in.connection = std::move(arrival.connection);
      Read(in);
    }
  }

  // Reads the available bytes. `in` may be destroyed afterwards.
  void Read(Incoming& in) {
    size_t read = 0;
    while (read < kMostAtOnce) {
      const bool is_direct = in.pending != nullptr && in.ahead_begin == in.ahead_end &&
                             in.pending->buffer->size() - in.got >= in.ahead.size();
      std::byte* to = in.ahead.data();
      size_t room = in.ahead.size();
      if (is_direct) {
        to = in.pending->buffer->data() + in.got;
        room = in.pending->buffer->size() - in.got;
      }
      const ssize_t got = recv(in.connection.get(), to, room, 0);
      if (got < 0 && (errno == EAGAIN || errno == EWOULDBLOCK)) return;
      if (got < 0 && errno == EINTR) continue;
      if (got <= 0) {
        if (lost_[in.from].ok()) lost_[in.from] = ConnectionError(got == 0 ? 0 : errno);
        incoming_.erase(in.connection.get());
        return;
      }
      read += static_cast<size_t>(got);
      if (is_direct) {
        in.got += static_cast<size_t>(got);
        FinishIfWhole(in);
      } else {
        in.ahead_begin = 0;
        in.ahead_end = static_cast<size_t>(got);
        Sort(in);
      }
    }
  }

  // Copies the bytes that were read ahead to their messages.
  void Sort(Incoming& in) {
    while (in.ahead_begin < in.ahead_end) {
      const std::byte* from = in.ahead.data() + in.ahead_begin;
      const size_t there = in.ahead_end - in.ahead_begin;
      if (in.pending == nullptr) {
        const size_t taken = std::min(there, sizeof(Frame) - in.frame_got);
        std::memcpy(reinterpret_cast<std::byte*>(&in.frame) + in.frame_got, from, taken);
        in.frame_got += taken;
        in.ahead_begin += taken;
        if (in.frame_got == sizeof(Frame)) BeginMessage(in);
      } else {
        const size_t taken = std::min(there, in.pending->buffer->size() - in.got);
        std::memcpy(in.pending->buffer->data() + in.got, from, taken);
        in.got += taken;
        in.ahead_begin += taken;
        FinishIfWhole(in);
      }
    }
  }

  void BeginMessage(Incoming& in) {
    in.frame_got = in.got = 0;
    in.pending = Awaiting(in.from, in.frame.tag);
    in.is_awaited = in.pending != nullptr;
    if (in.is_awaited) {
      in.pending->status = CheckSize(in.frame.bytes, in.pending->buffer->size());
      if (!in.pending->status.ok()) in.is_awaited = false;
    }
    if (!in.is_awaited) {
      in.pending = std::make_shared<PendingMessage>();
      in.pending->buffer = std::make_shared<MessageBytes>(in.frame.bytes);
    }
    FinishIfWhole(in);
  }

  // Removes the oldest matching receive from awaited_ and returns it; null if there is none.
  std::shared_ptr<PendingMessage> Awaiting(int from, uint32_t tag) {
    const auto awaited = awaited_.find({from, tag});
    if (awaited == awaited_.end()) return nullptr;
    std::shared_ptr<PendingMessage> first = std::move(awaited->second.front());
    awaited->second.pop_front();
    if (awaited->second.empty()) awaited_.erase(awaited);
    return first;
  }

  void FinishIfWhole(Incoming& in) {
    if (in.got < in.pending->buffer->size()) return;
    const std::shared_ptr<PendingMessage> pending = std::exchange(in.pending, nullptr);
    pending->done = true;
    if (in.is_awaited) return;
    if (in.frame.tag == kNoticeTag) return TakeNotice(in.from, *pending->buffer);
    // A receive may have been started while the message arrived.
    const std::shared_ptr<PendingMessage> asked = Awaiting(in.from, in.frame.tag);
    if (asked == nullptr) {
      unexpected_[{in.from, in.frame.tag}].push_back(pending->buffer);
      return;
    }
    asked->status = CheckSize(pending->buffer->size(), asked->buffer->size());
    if (asked->status.ok()) *asked->buffer = std::move(*pending->buffer);
    asked->done = true;
  }

  void TakeNotice(int from, const MessageBytes& bytes) {
    NoticeMessage message;
    if (bytes.size() != sizeof(message)) return;
    std::memcpy(&message, bytes.data(), sizeof(message));
    notices_.push_back(message.From(from));
  }

  const std::shared_ptr<SocketListener> listener_;  // shared by the links of this rank's communicators
  const int here_;
  const std::shared_ptr<const std::vector<ListenerInfo>>
      listeners_;  // shared by the links of this rank's communicators
  const std::vector<int> ranks_;
  const uint32_t channel_;
  const std::vector<int> group_begins_;
  Descriptor poll_;
  int event_ = -1;                    // the listener's event of this channel
  std::vector<Outgoing> outgoing_;    // by rank
  std::map<int, int> by_descriptor_;  // to the index in outgoing_
  std::map<int, Incoming> incoming_;  // by descriptor
  std::vector<absl::Status> lost_;    // by rank
  std::map<std::pair<int, uint32_t>, std::deque<std::shared_ptr<PendingMessage>>> awaited_;  // by sender and tag
  std::map<std::pair<int, uint32_t>, std::deque<MessageBuffer>> unexpected_;                 // by sender and tag
  std::deque<Notice> notices_;
};

}  // namespace

absl::StatusOr<std::unique_ptr<Links>> CreateSocketLinks(std::shared_ptr<SocketListener> listener, int rank,
                                                         std::vector<ListenerInfo> listeners,
                                                         std::vector<int> group_begins) {
  std::vector<int> ranks(listeners.size());
  std::iota(ranks.begin(), ranks.end(), 0);
  auto links = std::make_unique<SocketLinks>(std::move(listener), rank,
                                             std::make_shared<const std::vector<ListenerInfo>>(std::move(listeners)),
                                             std::move(ranks), 0, std::move(group_begins));
  RETURN_IF_ERROR(links->Open());
  return links;
}

}  // namespace lockstep
