// TCP connections between ranks: the addresses at which a rank listens, the order in which others try its addresses,
// and a handshake that verifies the peer. A connection carries bytes in one direction. No call waits.
//
// A machine has several addresses. Some are unreachable, and some, such as that of a container's bridge, lead to
// another machine. So a connecting rank tries one after the other, sends a random number that identifies its peer, and
// continues only if the answer is the peer's other number. Only the ranks of the job know both, from their
// introduction.

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

// A file descriptor, closed by the destructor.
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

// Waits until the descriptor is ready for `events` of poll(2), or has failed. Returns false at the deadline, a
// SteadyNow().
bool AwaitReady(int descriptor, int16_t events, absl::Duration deadline);

// The port and the addresses at which a rank listens, which it sends to the others. Plain data, sent as bytes.
struct ListenerInfo {
  static constexpr int kMostAddresses = 8;
  struct Address {
    uint8_t bytes[16] = {};
    uint8_t is_v6 = 0;
    uint8_t is_loopback = 0;
    uint8_t prefix_bits = 0;  // of its network
    uint8_t unused = 0;
    uint32_t scope = 0;  // for IPv6, valid on its own machine
  };
  uint64_t nonce = 0;   // identifies the listener; random
  uint64_t answer = 0;  // with which it answers, so that what listens at its address elsewhere is not taken for it
  uint16_t port = 0;
  uint16_t count = 0;
  Address addresses[kMostAddresses] = {};
};

// Returns the peer's addresses in the order of trying: first those in networks that this machine has, too; loopback
// last.
std::vector<ListenerInfo::Address> WaysTo(const ListenerInfo& here, const ListenerInfo& peer);

// The first bytes of a connection.
struct Greeting {
  uint64_t nonce = 0;  // of the listener
  uint32_t channel = 0;
  int32_t from = -1;  // the rank that connects, and sends
};

// Returns the value of LOCKSTEP_INTERFACE, the interfaces on which this process is to listen; "" if it is not set.
std::string InterfacesOfEnvironment();

// Accepts connections for all channels of a rank. Any thread.
class SocketListener {
 public:
  // Listens on `interfaces`: prefixes of interface names, separated by commas ("ib" for ib0 and ib1); empty: all.
  static absl::StatusOr<std::shared_ptr<SocketListener>> Create(const std::string& interfaces);

  const ListenerInfo& info() const { return info_; }

  // Becomes readable when Accept has work.
  int descriptor() const { return poll_.get(); }
  // Accepts new connections, and answers those with a correct greeting.
  void Accept();

  struct Arrival {
    int from = -1;
    Descriptor connection;
  };
  // Opens the channel. The returned descriptor becomes readable when a connection of the channel has arrived.
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
    Descriptor event;  // none until the channel is opened
    std::vector<Arrival> arrivals;
  };

  SocketListener() = default;
  void Listen(Newcomer& newcomer, bool* done);

  Descriptor listener_, poll_;
  ListenerInfo info_;
  std::mutex mutex_;                   // guards the following members
  std::map<int, Newcomer> newcomers_;  // by descriptor
  std::map<uint32_t, Channel> channels_;
};

// A connection that is being made, to one of the addresses. Call Step whenever its descriptor is ready, and at the
// deadline.
class Connecting {
 public:
  Connecting(std::vector<ListenerInfo::Address> ways, const ListenerInfo& peer, Greeting greeting);

  // Continues. Returns true when the connection is established, and false while it is in progress. Returns an error
  // with all addresses when none is left.
  absl::StatusOr<bool> Step();
  int descriptor() const { return connection_.get(); }
  bool wants_to_write() const { return state_ == State::kConnects || state_ == State::kGreets; }
  absl::Duration deadline() const { return deadline_; }  // the latest time of the next Step
  Descriptor Release() { return std::move(connection_); }

 private:
  enum class State { kBegins, kConnects, kGreets, kAwaitsAnswer };
  bool Begin();
  void GiveUp(const std::string& why);

  const std::vector<ListenerInfo::Address> ways_;
  const uint16_t port_;
  const uint64_t expected_;  // the listener's answer
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
