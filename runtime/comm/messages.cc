#include "runtime/comm/messages.h"

#include <algorithm>
#include <condition_variable>
#include <cstring>
#include <deque>
#include <map>
#include <mutex>
#include <numeric>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include "core/status.h"
#include "runtime/comm/network/socket_links.h"
#include "runtime/comm/network/sockets.h"
#include "runtime/process/clock.h"
#include "runtime/process/process.h"

namespace lockstep {
namespace {

// A message is two messages of the links: a header, and the bytes.
constexpr int kHeaderTag = 0, kBytesTag = 1;
constexpr absl::Duration kNap = absl::Milliseconds(100);  // Wake ends it

struct Header {
  int64_t tag = 0;
  uint64_t bytes = 0;
};

class SocketMessages final : public Messages {
 public:
  SocketMessages(std::unique_ptr<Links> links, int rank, std::vector<std::string> hosts)
      : generation_(ForkGeneration()), own_(std::make_unique<Own>()), rank_(rank), hosts_(std::move(hosts)) {
    own_->links = std::move(links);
  }

  ~SocketMessages() override {
    if (ForkGeneration() != generation_) {
      (void)own_.release();  // the thread is in another process
      return;
    }
    {
      const std::lock_guard lock(own_->mutex);
      own_->ended = true;
    }
    own_->changed.notify_all();
    own_->links->Wake();
    if (own_->thread.joinable()) own_->thread.join();
  }

  Ticket Send(int to, int64_t tag, std::span<const std::byte> bytes) override {
    auto buffer = std::make_shared<MessageBytes>(bytes.size());
    std::copy(bytes.begin(), bytes.end(), buffer->data());
    return Post({.is_send = true, .rank = to, .tag = tag, .buffer = std::move(buffer)});
  }

  Ticket Receive(int from, int64_t tag, std::span<std::byte> into) override {
    return Post({.is_send = false, .rank = from, .tag = tag, .into = into});
  }

  absl::StatusOr<int> Wait(Ticket ticket, absl::Duration limit) override {
    if (ForkGeneration() != generation_) return FailedPrecondition() << "messages belong to the process before a fork";
    std::unique_lock lock(own_->mutex);
    const auto outcome = own_->outcomes.find(ticket.id);
    if (outcome == own_->outcomes.end())
      return InvalidArgument() << ticket.id << " is no message in flight, or has already been waited for";
    const bool done =
        own_->changed.wait_for(lock, absl::ToChronoNanoseconds(limit), [&] { return outcome->second.has_value(); });
    if (!done) return ErrorStream(absl::StatusCode::kDeadlineExceeded) << "the message is still in flight";
    const absl::StatusOr<int> result = *std::move(outcome->second);
    own_->outcomes.erase(outcome);
    return result;
  }

 private:
  // What a caller asks for.
  struct Request {
    bool is_send;
    int rank;
    int64_t tag;
    MessageBuffer buffer = nullptr;  // of a send
    std::span<std::byte> into = {};  // of a receive
    uint64_t id = 0;
  };
  struct Sending {
    uint64_t id;
    int to;
    std::unique_ptr<LinkRequest> request;
  };
  // A message whose header is here.
  struct Arrival {
    int from;
    int64_t tag;
    MessageBuffer buffer;
    std::unique_ptr<LinkRequest> request;  // null when it is complete
  };
  struct Awaited {
    MessageBuffer buffer;
    std::unique_ptr<LinkRequest> request;
  };
  // On the heap, as a forked process must leave it as it is.
  struct Own {
    std::mutex mutex;  // guards the following members
    std::condition_variable changed;
    bool ended = false;
    uint64_t last_id = 0;
    std::vector<Request> posts;
    std::map<uint64_t, std::optional<absl::StatusOr<int>>> outcomes;  // by ticket
    std::thread thread;

    // Of the thread alone.
    std::unique_ptr<Links> links;
    std::vector<Awaited> headers;  // the next one from each rank
    std::deque<Request> receives;  // without a message
    std::deque<Arrival> arrivals;  // without a receive
    std::vector<Sending> sendings;
    std::vector<std::pair<Request, Arrival>> receivings;
  };

  Ticket Post(Request request) {
    const std::lock_guard lock(own_->mutex);
    const Ticket ticket = {request.id = ++own_->last_id};
    own_->outcomes[ticket.id] = std::nullopt;
    own_->posts.push_back(std::move(request));
    if (!own_->thread.joinable()) own_->thread = std::thread([this] { Work(); });
    own_->changed.notify_all();
    own_->links->Wake();
    return ticket;
  }

  void Work() {
    for (int r = 0; r < static_cast<int>(hosts_.size()); ++r) own_->headers.push_back(NextHeader(r));
    while (true) {
      std::vector<Request> posts;
      {
        std::unique_lock lock(own_->mutex);
        own_->changed.wait(lock, [&] { return own_->ended || !own_->posts.empty() || IsBusy(); });
        if (own_->ended) break;
        posts.swap(own_->posts);
      }
      for (Request& post : posts) Begin(std::move(post));
      if (!Advance()) own_->links->Progress(HasPosts() ? absl::ZeroDuration() : kNap);
      while (Advance()) {
      }
      GiveUpTheLost();
    }
  }

  // A post between this and Progress wakes Progress.
  bool HasPosts() {
    const std::lock_guard lock(own_->mutex);
    return own_->ended || !own_->posts.empty();
  }

  // Returns true if something is in flight that only the links can finish.
  bool IsBusy() const { return !own_->receives.empty() || !own_->sendings.empty() || !own_->receivings.empty(); }

  std::string NameOf(int rank) const { return "rank " + std::to_string(rank) + " on host " + hosts_[rank]; }

  // The outcome shares nothing with the thread, as absl's libraries are not instrumented for the thread sanitizer.
  void Finish(uint64_t id, const absl::StatusOr<int>& outcome) {
    const std::lock_guard lock(own_->mutex);
    if (outcome.ok()) own_->outcomes[id] = *outcome;
    else own_->outcomes[id] = absl::Status(outcome.status().code(), outcome.status().message());
    own_->changed.notify_all();
  }

  Awaited NextHeader(int from) {
    auto buffer = std::make_shared<MessageBytes>(sizeof(Header));
    if (from == rank_) return {};
    auto request = own_->links->Receive(from, kHeaderTag, buffer);
    return {.buffer = std::move(buffer), .request = request.ok() ? *std::move(request) : nullptr};
  }

  void Begin(Request post) {
    if (post.is_send) {
      const Header header{.tag = post.tag, .bytes = post.buffer->size()};
      auto head = std::make_shared<MessageBytes>(sizeof(header));
      std::memcpy(head->data(), &header, sizeof(header));
      absl::Status sent = own_->links->Send(post.rank, kHeaderTag, std::move(head)).status();
      if (!sent.ok()) return Finish(post.id, Annotate(sent, NameOf(post.rank)));
      auto request = own_->links->Send(post.rank, kBytesTag, std::move(post.buffer));
      if (!request.ok()) return Finish(post.id, Annotate(request.status(), NameOf(post.rank)));
      own_->sendings.push_back({.id = post.id, .to = post.rank, .request = *std::move(request)});
      return own_->links->Progress(absl::ZeroDuration());
    }
    const auto arrival = std::find_if(own_->arrivals.begin(), own_->arrivals.end(),
                                      [&](const Arrival& each) { return IsFor(post, each); });
    if (arrival == own_->arrivals.end()) return own_->receives.push_back(std::move(post));
    own_->receivings.emplace_back(std::move(post), std::move(*arrival));
    own_->arrivals.erase(arrival);
  }

  static bool IsFor(const Request& receive, const Arrival& message) {
    return receive.tag == message.tag && (receive.rank == kAnyRank || receive.rank == message.from);
  }

  // Notes what the links have finished. Returns true if there was something.
  bool Advance() {
    bool advanced = false;
    for (int r = 0; r < static_cast<int>(hosts_.size()); ++r) {
      for (; IsDone(own_->headers[r].request); advanced = true) Match(r);
    }
    for (Arrival& each : own_->arrivals) {
      if (each.request != nullptr && IsDone(each.request)) each.request = nullptr;
    }
    advanced |= std::erase_if(own_->sendings, [&](Sending& each) {
                  if (!IsDone(each.request)) return false;
                  Finish(each.id, each.to);
                  return true;
                }) > 0;
    advanced |= std::erase_if(own_->receivings, [&](std::pair<Request, Arrival>& each) {
                  if (each.second.request != nullptr && !IsDone(each.second.request)) return false;
                  Deliver(each.first, each.second);
                  return true;
                }) > 0;
    return advanced;
  }

  static bool IsDone(const std::unique_ptr<LinkRequest>& request) {
    if (request == nullptr) return false;
    const absl::StatusOr<bool> done = request->Test();
    return done.ok() && *done;
  }

  // Reads the header that rank `from` has sent.
  void Match(int from) {
    Header header;
    std::memcpy(&header, own_->headers[from].buffer->data(), sizeof(header));
    own_->headers[from] = NextHeader(from);
    auto buffer = std::make_shared<MessageBytes>(header.bytes);
    auto request = own_->links->Receive(from, kBytesTag, buffer);
    Arrival arrival{.from = from,
                    .tag = header.tag,
                    .buffer = std::move(buffer),
                    .request = request.ok() ? *std::move(request) : nullptr};
    const auto receive = std::find_if(own_->receives.begin(), own_->receives.end(),
                                      [&](const Request& each) { return IsFor(each, arrival); });
    if (receive == own_->receives.end()) return own_->arrivals.push_back(std::move(arrival));
    own_->receivings.emplace_back(std::move(*receive), std::move(arrival));
    own_->receives.erase(receive);
  }

  void Deliver(const Request& receive, const Arrival& message) {
    if (message.buffer->size() != receive.into.size()) {
      return Finish(receive.id, ErrorStream(absl::StatusCode::kOutOfRange)
                                    << NameOf(message.from) << " sent " << message.buffer->size() << " bytes with tag "
                                    << message.tag << ", and " << receive.into.size() << " were expected");
    }
    std::copy_n(message.buffer->data(), message.buffer->size(), receive.into.data());
    Finish(receive.id, message.from);
  }

  // Ends what waits for ranks that have left.
  void GiveUpTheLost() {
    const auto lost = [&](int rank) {
      const absl::Status why = own_->links->Lost(rank);
      return why.ok() ? why : Annotate(why, NameOf(rank));
    };
    const auto give_up = [&](uint64_t id, const absl::Status& why) {
      if (!why.ok()) Finish(id, why);
      return !why.ok();
    };
    std::erase_if(own_->sendings, [&](const Sending& each) { return give_up(each.id, lost(each.to)); });
    std::erase_if(own_->receivings, [&](const auto& each) { return give_up(each.first.id, lost(each.second.from)); });
    std::erase_if(own_->receives,
                  [&](const Request& each) { return each.rank != kAnyRank && give_up(each.id, lost(each.rank)); });
  }

  const uint32_t generation_;
  std::unique_ptr<Own> own_;
  const int rank_;
  const std::vector<std::string> hosts_;  // by rank
};

}  // namespace

absl::StatusOr<std::unique_ptr<Messages>> Messages::Create(Communicator& world) {
  absl::StatusOr<std::shared_ptr<SocketListener>> listener = SocketListener::Create(InterfacesOfEnvironment());
  const ListenerInfo mine = listener.ok() ? (*listener)->info() : ListenerInfo();
  ASSIGN_OR_RETURN(const std::vector<std::string> all,
                   world.AllGatherBytes({reinterpret_cast<const char*>(&mine), sizeof(mine)}, "messages"));
  RETURN_IF_ERROR(listener.status());
  std::vector<ListenerInfo> listeners(all.size());
  for (size_t r = 0; r < all.size(); ++r) std::memcpy(&listeners[r], all[r].data(), sizeof(ListenerInfo));
  std::vector<int> alone(all.size());  // each rank is a group
  std::iota(alone.begin(), alone.end(), 0);
  ASSIGN_OR_RETURN(std::unique_ptr<Links> links,
                   CreateSocketLinks(*std::move(listener), world.rank(), std::move(listeners), std::move(alone)));
  return std::make_unique<SocketMessages>(std::move(links), world.rank(), world.hosts());
}

}  // namespace lockstep
