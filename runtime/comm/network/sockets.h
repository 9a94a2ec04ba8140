// TCP connections between ranks: where a rank listens, how others find the way to it, and how both make sure that they
// have found each other. A connection carries bytes one way. Nothing here waits.
//
// A machine has several addresses, of which some lead nowhere and some, such as that of a container's bridge, to
// another machine than is meant. So whoever connects tries one after the other, says whom it looks for by a number that
// nobody else has, and goes on only when it is answered by the same.

#pragma once

#include <sys/socket.h>

#include <cstdint>
#include <deque>
#include <map>
#include <memory>
#include <mutex>
#include <string>
#include <utility>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/time/time.h"

namespace lockstep {

// A file descriptor, closed at the end.
class Descriptor {
 public:
  explicit Descriptor(int number = -1) : number_(number) {}
  Descriptor(Descriptor&& other) noexcept : number_(std::exchange(other.number_, -1)) {}
  Descriptor& operator=(Descriptor&& other) noexcept {
    std::swap(number_, other.number_);
    return *this;
  }
  ~Descriptor();
  int get() const { return number_; }
  explicit operator bool() const { return number_ >= 0; }

 private:
  int number_;
};

// Where a rank listens, as it tells the others. Plain data, which travels as it is.
struct SocketPlace {
  static constexpr int kMostAddresses = 8;
  struct Address {
    uint8_t bytes[16] = {};
    uint8_t is_v6 = 0;
    uint8_t is_loopback = 0;
    uint8_t prefix_bits = 0;  // of its network
    uint8_t unused = 0;
    uint32_t scope = 0;  // of IPv6, in its own machine
  };
  uint64_t nonce = 0;  // tells it from all others
  uint16_t port = 0;
  uint16_t count = 0;
  Address addresses[kMostAddresses] = {};
};

// The peer's addresses in the order in which to try them: those of networks that this machine has, too, come first, and
// loopback comes last.
std::vector<SocketPlace::Address> WaysTo(const SocketPlace& here, const SocketPlace& peer);

// What a connection begins with.
struct Greeting {
  uint64_t nonce = 0;  // of the place that it looks for
  uint32_t channel = 0;
  int32_t from = -1;  // the rank that connects, and sends
};

// Takes connections for all channels of a rank. Any thread.
class SocketListener {
 public:
  // `interfaces`: names of those to listen on, separated by commas, each perhaps without its last letters ("ib" for ib0
  // and ib1); empty: all.
  static absl::StatusOr<std::shared_ptr<SocketListener>> Create(const std::string& interfaces);

  const SocketPlace& place() const { return place_; }

  // Becomes readable when Accept has something to do.
  int descriptor() const { return poll_.get(); }
  // Takes connections that have come, and answers those that are right.
  void Accept();

  struct Arrival {
    int from = -1;
    Descriptor connection;
  };
  // From now on connections of the channel are for somebody, who reads `descriptor()` of it when one has come.
  int Open(uint32_t channel);
  std::vector<Arrival> Take(uint32_t channel);
  void Close(uint32_t channel);

 private:
  struct Newcomer {
    Descriptor connection;
    Greeting greeting;
    size_t got = 0;
    absl::Duration since;
  };
  struct Channel {
    Descriptor event;  // none while nobody has opened it
    std::vector<Arrival> arrivals;
  };

  SocketListener() = default;
  void Listen(Newcomer& newcomer, bool* done);

  Descriptor listener_, poll_;
  SocketPlace place_;
  std::mutex mutex_;                   // guards what follows
  std::map<int, Newcomer> newcomers_;  // by descriptor
  std::map<uint32_t, Channel> channels_;
};

// A connection that is being made, to one of the ways. To be asked whenever its descriptor is ready, and at the times
// that it says.
class Connecting {
 public:
  Connecting(std::vector<SocketPlace::Address> ways, const SocketPlace& peer, Greeting greeting);

  // Goes on. True when it is there, false while it is under way; an error that names all ways when none is left.
  absl::StatusOr<bool> Step();
  int descriptor() const { return connection_.get(); }
  bool wants_to_write() const { return state_ == State::kConnects || state_ == State::kGreets; }
  absl::Duration deadline() const { return deadline_; }  // when to ask again at the latest
  Descriptor Release() { return std::move(connection_); }

 private:
  enum class State { kBegins, kConnects, kGreets, kAwaitsAnswer };
  bool Begin();
  void GiveUp(const std::string& why);

  const std::vector<SocketPlace::Address> ways_;
  const uint16_t port_;
  const Greeting greeting_;
  size_t way_ = 0;
  Descriptor connection_;
  State state_ = State::kBegins;
  size_t moved_ = 0;  // bytes of the greeting or of the answer
  uint64_t answer_ = 0;
  absl::Duration deadline_;
  std::string failures_;
};

}  // namespace lockstep
