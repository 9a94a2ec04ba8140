#include "runtime/comm/network/sockets.h"

#include <arpa/inet.h>
#include <ifaddrs.h>
#include <net/if.h>
#include <netinet/in.h>
#include <netinet/tcp.h>
#include <poll.h>
#include <sys/epoll.h>
#include <sys/eventfd.h>
#include <sys/random.h>
#include <unistd.h>

#include <algorithm>
#include <bit>
#include <cerrno>
#include <cstdlib>
#include <cstring>
#include <optional>
#include <string_view>

#include "core/status.h"
#include "runtime/process/clock.h"

namespace lockstep {
namespace {

constexpr absl::Duration kWayTime = absl::Seconds(3);  // for one address
constexpr absl::Duration kGreetingTime = absl::Seconds(5);
// A peer that does not answer counts as lost after this time, even if no one waits for it.
constexpr int kSilenceSeconds = 15;

bool WouldWait() { return errno == EAGAIN || errno == EWOULDBLOCK || errno == EINTR; }

absl::Status SystemError(std::string_view call) {
  return ErrorStream(absl::StatusCode::kUnavailable) << call << ": " << std::strerror(errno);
}

struct Endpoint {
  sockaddr_storage address{};
  socklen_t length = 0;
};

Endpoint EndpointOf(const ListenerInfo::Address& address, uint16_t port) {
  Endpoint endpoint;
  if (address.is_v6) {
    auto* v6 = reinterpret_cast<sockaddr_in6*>(&endpoint.address);
    v6->sin6_family = AF_INET6;
    v6->sin6_port = htons(port);
    std::memcpy(&v6->sin6_addr, address.bytes, 16);
    endpoint.length = sizeof(*v6);
  } else {
    auto* v4 = reinterpret_cast<sockaddr_in*>(&endpoint.address);
    v4->sin_family = AF_INET;
    v4->sin_port = htons(port);
    std::memcpy(&v4->sin_addr, address.bytes, 4);
    endpoint.length = sizeof(*v4);
  }
  return endpoint;
}

std::string TextOf(const ListenerInfo::Address& address) {
  char text[INET6_ADDRSTRLEN] = "?";
  inet_ntop(address.is_v6 ? AF_INET6 : AF_INET, address.bytes, text, sizeof(text));
  return text;
}

int BitsOf(const sockaddr* mask, size_t offset, size_t bytes) {
  if (mask == nullptr) return 0;
  int bits = 0;
  const auto* begin = reinterpret_cast<const uint8_t*>(mask) + offset;
  for (size_t i = 0; i < bytes; ++i) bits += std::popcount(begin[i]);
  return bits;
}

std::optional<ListenerInfo::Address> AddressOf(const ifaddrs& entry) {
  ListenerInfo::Address address;
  address.is_loopback = (entry.ifa_flags & IFF_LOOPBACK) != 0;
  if (entry.ifa_addr->sa_family == AF_INET) {
    const auto* v4 = reinterpret_cast<const sockaddr_in*>(entry.ifa_addr);
    std::memcpy(address.bytes, &v4->sin_addr, 4);
    address.prefix_bits = static_cast<uint8_t>(BitsOf(entry.ifa_netmask, offsetof(sockaddr_in, sin_addr), 4));
    return address;
  }
  if (entry.ifa_addr->sa_family != AF_INET6) return std::nullopt;
  const auto* v6 = reinterpret_cast<const sockaddr_in6*>(entry.ifa_addr);
  if (IN6_IS_ADDR_LINKLOCAL(&v6->sin6_addr)) return std::nullopt;  // valid only on one machine
  std::memcpy(address.bytes, &v6->sin6_addr, 16);
  address.is_v6 = 1;
  address.prefix_bits = static_cast<uint8_t>(BitsOf(entry.ifa_netmask, offsetof(sockaddr_in6, sin6_addr), 16));
  return address;
}

bool IsSocketNamed(std::string_view interface, std::string_view names) {
  while (!names.empty()) {
    const size_t comma = std::min(names.find(','), names.size());
    const std::string_view name = names.substr(0, comma);
    if (!name.empty() && interface.substr(0, name.size()) == name) return true;
    names.remove_prefix(std::min(comma + 1, names.size()));
  }
  return false;
}

absl::Status FindAddresses(const std::string& interfaces, ListenerInfo* info) {
  ifaddrs* list = nullptr;
  if (getifaddrs(&list) != 0) return SystemError("getifaddrs");
  std::vector<ListenerInfo::Address> found;
  for (const ifaddrs* entry = list; entry != nullptr; entry = entry->ifa_next) {
    if (entry->ifa_addr == nullptr || (entry->ifa_flags & IFF_UP) == 0) continue;
    if (!interfaces.empty() && !IsSocketNamed(entry->ifa_name, interfaces)) continue;
    if (const std::optional<ListenerInfo::Address> address = AddressOf(*entry)) found.push_back(*address);
  }
  freeifaddrs(list);
  if (found.empty()) {
    return FailedPrecondition() << "no network interface "
                                << (interfaces.empty()
                                        ? "is up"
                                        : "that LOCKSTEP_INTERFACE=" + interfaces + " names has an address");
  }
  std::stable_sort(found.begin(), found.end(), [](const auto& a, const auto& b) {
    return std::pair(a.is_loopback, a.is_v6) < std::pair(b.is_loopback, b.is_v6);
  });
  info->count = static_cast<uint16_t>(std::min<size_t>(found.size(), ListenerInfo::kMostAddresses));
  std::copy_n(found.begin(), info->count, info->addresses);
  return absl::OkStatus();
}

bool AreNeighbours(const ListenerInfo::Address& a, const ListenerInfo::Address& b) {
  if (a.is_v6 != b.is_v6 || a.prefix_bits != b.prefix_bits) return false;
  for (int bit = 0; bit < a.prefix_bits; bit += 8) {
    const int left = std::min(8, a.prefix_bits - bit);
    const auto mask = static_cast<uint8_t>(0xFF << (8 - left));
    if (((a.bytes[bit / 8] ^ b.bytes[bit / 8]) & mask) != 0) return false;
  }
  return true;
}

void SetOptions(int descriptor) {
  const auto set = [descriptor](int level, int option, int value) {
    (void)setsockopt(descriptor, level, option, &value, sizeof(value));
  };
  set(IPPROTO_TCP, TCP_NODELAY, 1);
  set(SOL_SOCKET, SO_KEEPALIVE, 1);
  set(IPPROTO_TCP, TCP_KEEPIDLE, kSilenceSeconds / 3);
  set(IPPROTO_TCP, TCP_KEEPINTVL, kSilenceSeconds / 5);
  set(IPPROTO_TCP, TCP_KEEPCNT, 3);
  set(IPPROTO_TCP, TCP_USER_TIMEOUT, 1000 * kSilenceSeconds);
}

}  // namespace

Descriptor::~Descriptor() {
  if (number_ >= 0) close(number_);
}

bool AwaitReady(int descriptor, int16_t events, absl::Duration deadline) {
  while (true) {
    const absl::Duration left = std::max(deadline - SteadyNow(), absl::ZeroDuration());
    pollfd waiting{.fd = descriptor, .events = events, .revents = 0};
    const absl::Duration rounded = absl::Ceil(std::min(left, absl::Minutes(1)), absl::Milliseconds(1));
    if (poll(&waiting, 1, static_cast<int>(absl::ToInt64Milliseconds(rounded))) > 0) return true;
    if (left == absl::ZeroDuration()) return false;
  }
}

std::vector<ListenerInfo::Address> WaysTo(const ListenerInfo& here, const ListenerInfo& peer) {
  std::vector<ListenerInfo::Address> ways(peer.addresses, peer.addresses + peer.count);
  const auto distance = [&](const ListenerInfo::Address& way) {
    if (way.is_loopback) return 2;
    const auto* end = here.addresses + here.count;
    return std::any_of(here.addresses, end, [&](const auto& own) { return AreNeighbours(own, way); }) ? 0 : 1;
  };
  std::stable_sort(ways.begin(), ways.end(), [&](const auto& a, const auto& b) { return distance(a) < distance(b); });
  return ways;
}

std::string InterfacesOfEnvironment() {
  const char* const interfaces = std::getenv("LOCKSTEP_INTERFACE");
  return interfaces == nullptr ? "" : interfaces;
}

absl::StatusOr<std::shared_ptr<SocketListener>> SocketListener::Create(const std::string& interfaces) {
  std::shared_ptr<SocketListener> made(new SocketListener);
  RETURN_IF_ERROR(FindAddresses(interfaces, &made->info_));
  for (uint64_t* number : {&made->info_.nonce, &made->info_.answer}) {
    if (getrandom(number, sizeof(*number), 0) != sizeof(*number)) return SystemError("getrandom");
  }
  constexpr int kType = SOCK_STREAM | SOCK_NONBLOCK | SOCK_CLOEXEC;
  Endpoint any;
  made->listener_ = Descriptor(socket(AF_INET6, kType, 0));
  const int off = 0;
  if (made->listener_ && setsockopt(made->listener_.get(), IPPROTO_IPV6, IPV6_V6ONLY, &off, sizeof(off)) == 0) {
    ListenerInfo::Address all;  // of both address families
    all.is_v6 = 1;
    any = EndpointOf(all, 0);
  } else {  // a machine without IPv6
    made->listener_ = Descriptor(socket(AF_INET, kType, 0));
    any = EndpointOf({}, 0);
  }
  const int listener = made->listener_.get();
  if (listener < 0) return SystemError("socket");
  if (bind(listener, reinterpret_cast<const sockaddr*>(&any.address), any.length) != 0) return SystemError("bind");
  if (listen(listener, SOMAXCONN) != 0) return SystemError("listen");
  if (getsockname(listener, reinterpret_cast<sockaddr*>(&any.address), &any.length) != 0)
    return SystemError("getsockname");
  made->info_.port =
      ntohs(any.address.ss_family == AF_INET6 ? reinterpret_cast<const sockaddr_in6*>(&any.address)->sin6_port
                                              : reinterpret_cast<const sockaddr_in*>(&any.address)->sin_port);
  made->poll_ = Descriptor(epoll_create1(EPOLL_CLOEXEC));
  epoll_event event{.events = EPOLLIN, .data = {.fd = listener}};
  if (!made->poll_ || epoll_ctl(made->poll_.get(), EPOLL_CTL_ADD, listener, &event) != 0) return SystemError("epoll");
  return made;
}

void SocketListener::Accept() {
  std::lock_guard<std::mutex> lock(mutex_);
  epoll_event events[16];
  const int count = epoll_wait(poll_.get(), events, std::size(events), 0);
  for (int i = 0; i < count; ++i) {
    if (events[i].data.fd != listener_.get()) {
      const auto newcomer = newcomers_.find(events[i].data.fd);
      bool done = false;
      if (newcomer != newcomers_.end()) Listen(newcomer->second, &done);
      if (done) newcomers_.erase(newcomer);
      continue;
    }
    for (;;) {
      Descriptor connection(accept4(listener_.get(), nullptr, nullptr, SOCK_NONBLOCK | SOCK_CLOEXEC));
      if (!connection) break;
      SetOptions(connection.get());
      epoll_event event{.events = EPOLLIN, .data = {.fd = connection.get()}};
      if (epoll_ctl(poll_.get(), EPOLL_CTL_ADD, connection.get(), &event) != 0) continue;
      const int number = connection.get();
      newcomers_[number] = {.connection = std::move(connection), .greeting = {}, .got = 0, .since = SteadyNow()};
    }
  }
  std::erase_if(newcomers_, [](const auto& each) { return SteadyNow() - each.second.since > kGreetingTime; });
}

// Reads the greeting, and answers when it is complete and correct.
void SocketListener::Listen(Newcomer& newcomer, bool* done) {
  auto* bytes = reinterpret_cast<std::byte*>(&newcomer.greeting);
  const int number = newcomer.connection.get();
  const ssize_t got = recv(number, bytes + newcomer.got, sizeof(Greeting) - newcomer.got, 0);
  if (got < 0 && WouldWait()) return;
  *done = got <= 0;
  if (*done) return;
  newcomer.got += static_cast<size_t>(got);
  if (newcomer.got < sizeof(Greeting)) return;
  *done = true;
  // it is meant for another listener, or not from one of our ranks
  if (newcomer.greeting.nonce != info_.nonce) return;
  if (send(number, &info_.answer, sizeof(info_.answer), MSG_NOSIGNAL) != sizeof(info_.answer)) return;
  epoll_ctl(poll_.get(), EPOLL_CTL_DEL, number, nullptr);
  Channel& channel = channels_[newcomer.greeting.channel];
  channel.arrivals.push_back({newcomer.greeting.from, std::move(newcomer.connection)});
  const uint64_t one = 1;
  if (channel.event) (void)!write(channel.event.get(), &one, sizeof(one));
}

int SocketListener::Open(uint32_t number) {
  std::lock_guard<std::mutex> lock(mutex_);
  Channel& channel = channels_[number];
  channel.event = Descriptor(eventfd(channel.arrivals.empty() ? 0 : 1, EFD_NONBLOCK | EFD_CLOEXEC));
  return channel.event.get();
}

std::vector<SocketListener::Arrival> SocketListener::Take(uint32_t number) {
  std::lock_guard<std::mutex> lock(mutex_);
  Channel& channel = channels_[number];
  uint64_t count = 0;
  (void)!read(channel.event.get(), &count, sizeof(count));
  return std::exchange(channel.arrivals, {});
}

void SocketListener::Close(uint32_t channel) {
  std::lock_guard<std::mutex> lock(mutex_);
  channels_.erase(channel);
}

Connecting::Connecting(std::vector<ListenerInfo::Address> ways, const ListenerInfo& peer, Greeting greeting)
    : ways_(std::move(ways)), port_(peer.port), expected_(peer.answer), greeting_(greeting) {}

// Starts a connection to the present address. Returns true if it is in progress.
bool Connecting::Begin() {
  const Endpoint endpoint = EndpointOf(ways_[way_], port_);
  connection_ = Descriptor(socket(endpoint.address.ss_family, SOCK_STREAM | SOCK_NONBLOCK | SOCK_CLOEXEC, 0));
  deadline_ = SteadyNow() + kWayTime;
  if (connection_) SetOptions(connection_.get());
  const bool begun = connection_ && (connect(connection_.get(), reinterpret_cast<const sockaddr*>(&endpoint.address),
                                             endpoint.length) == 0 ||
                                     errno == EINPROGRESS);
  if (begun) state_ = State::kConnects;
  else GiveUp(std::strerror(errno));
  return begun;
}

void Connecting::GiveUp(const std::string& why) {
  failures_ += (failures_.empty() ? "" : "; ") + TextOf(ways_[way_]) + " port " + std::to_string(port_) + ": " + why;
  connection_ = Descriptor();
  state_ = State::kBegins;
  ++way_;
}

absl::StatusOr<bool> Connecting::Step() {
  for (;;) {
    if (way_ == ways_.size()) {
      return ErrorStream(absl::StatusCode::kUnavailable)
             << "cannot be reached: " << (failures_.empty() ? "it has no address" : failures_);
    }
    if (state_ != State::kBegins && SteadyNow() >= deadline_) {
      GiveUp("no answer");
      continue;
    }
    switch (state_) {
      case State::kBegins:
        if (!Begin()) continue;
        return false;
      case State::kConnects: {
        int error = 0;
        socklen_t length = sizeof(error);
        getsockopt(connection_.get(), SOL_SOCKET, SO_ERROR, &error, &length);
        sockaddr_storage peer;
        socklen_t peer_length = sizeof(peer);
        if (error == 0 && getpeername(connection_.get(), reinterpret_cast<sockaddr*>(&peer), &peer_length) != 0)
          return false;
        if (error != 0) {
          GiveUp(std::strerror(error));
          continue;
        }
        state_ = State::kGreets;
        moved_ = 0;
        continue;
      }
      case State::kGreets: {
        const auto* bytes = reinterpret_cast<const std::byte*>(&greeting_);
        const ssize_t sent = send(connection_.get(), bytes + moved_, sizeof(Greeting) - moved_, MSG_NOSIGNAL);
        if (sent < 0 && WouldWait()) return false;
        if (sent < 0) {
          GiveUp(std::strerror(errno));
          continue;
        }
        moved_ += static_cast<size_t>(sent);
        if (moved_ < sizeof(Greeting)) continue;
        state_ = State::kAwaitsAnswer;
        moved_ = 0;
        continue;
      }
      case State::kAwaitsAnswer: {
        auto* bytes = reinterpret_cast<std::byte*>(&answer_);
        const ssize_t got = recv(connection_.get(), bytes + moved_, sizeof(answer_) - moved_, 0);
        if (got < 0 && WouldWait()) return false;
        if (got <= 0) {
          GiveUp(got == 0 ? "another process listens there" : std::strerror(errno));
          continue;
        }
        moved_ += static_cast<size_t>(got);
        if (moved_ < sizeof(answer_)) continue;
        if (answer_ == expected_) return true;
        GiveUp("another process answers there");
        continue;
      }
    }
  }
}

}  // namespace lockstep
