#include "runtime/comm/world/rendezvous.h"

#include <arpa/inet.h>
#include <fcntl.h>
#include <netdb.h>
#include <netinet/in.h>
#include <netinet/tcp.h>
#include <poll.h>
#include <sys/socket.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstring>
#include <map>
#include <string_view>
#include <utility>
#include <vector>

#include "absl/time/clock.h"
#include "core/status.h"
#include "runtime/comm/host/control_block.h"
#include "runtime/comm/network/sockets.h"
#include "runtime/comm/world/proof.h"
#include "runtime/comm/world/rendezvous_file.h"
#include "runtime/process/clock.h"
#include "runtime/process/process.h"

namespace lockstep {
namespace {

constexpr char kMagic[8] = {'L', 'O', 'C', 'K', 'S', 'T', 'E', 'P'};
constexpr uint32_t kVersion = 2;  // of the messages below
constexpr absl::Duration kShortPause =
    absl::Milliseconds(10);  // after the first attempt to connect; then twice as long
constexpr absl::Duration kLongPause = absl::Milliseconds(200);
constexpr absl::Duration kAttempt = absl::Seconds(5);          // for one attempt
constexpr absl::Duration kIntroduction = absl::Seconds(5);     // for a newcomer to say who it is
constexpr absl::Duration kFarewell = absl::Milliseconds(500);  // for the last message to a rank

// The messages. Plain data, sent as bytes between machines of one kind.
struct Challenge {  // rank 0's, when another process connects
  char magic[8] = {};
  uint32_t version = 0;
  uint32_t has_secret = 0;
  Nonce nonce = {};
};
struct Hello {  // the answer
  char magic[8] = {};
  uint32_t version = 0;
  int32_t rank = -1, size = 0, process = 0;
  char job[Rendezvous::kMostJobBytes + 1] = {};
  char host[kHostBytes] = {};
  uint32_t has_secret = 0;
  Nonce nonce = {};
  Proof proof = {};  // over all that precedes it
};
// The beginning of each of rank 0's later messages. `bytes` follow if the code is 0: its proof, and what was gathered.
struct Verdict {
  char magic[8] = {};
  int32_t code = 0;  // absl::StatusCode
  uint32_t bytes = 0;
  char message[512] = {};
};

// Returns the proof of rank 0 or of another rank. As they differ, neither can be sent back as the other.
Proof ProofOf(bool of_rank_0, const std::string& secret, const Challenge& challenge, const Hello& hello) {
  std::string said = of_rank_0 ? "lockstep rank 0" : "lockstep another";
  said.append(reinterpret_cast<const char*>(&challenge), sizeof(challenge));
  said.append(reinterpret_cast<const char*>(&hello), offsetof(Hello, proof));
  return HmacSha256(secret, said);
}

Verdict VerdictOf(const absl::Status& status, size_t bytes = 0) {
  Verdict verdict{.code = static_cast<int32_t>(status.code()), .bytes = static_cast<uint32_t>(bytes)};
  std::memcpy(verdict.magic, kMagic, sizeof(kMagic));
  CopyText(std::string_view(status.message().data(), status.message().size()), verdict.message,
           sizeof(verdict.message));
  return verdict;
}

absl::Status SystemError(const std::string& what, int error) {
  return ErrorStream(absl::StatusCode::kUnavailable) << what << ": " << std::strerror(error);
}

// A connection. Its descriptor does not block.
class Peer {
 public:
  explicit Peer(Descriptor connection) : connection_(std::move(connection)) {
    const int on = 1;
    setsockopt(connection_.get(), IPPROTO_TCP, TCP_NODELAY, &on, sizeof(on));
  }

  int descriptor() const { return connection_.get(); }

  // Each of these moves all bytes or returns an error: DeadlineExceeded, or Unavailable if the peer has gone.
  absl::Status Send(const void* data, size_t bytes, absl::Duration deadline) {
    return Move(POLLOUT, bytes, deadline, [&](size_t done) {
      return send(connection_.get(), static_cast<const char*>(data) + done, bytes - done, MSG_NOSIGNAL);
    });
  }
  absl::Status Receive(void* data, size_t bytes, absl::Duration deadline) {
    return Move(POLLIN, bytes, deadline,
                [&](size_t done) { return recv(connection_.get(), static_cast<char*>(data) + done, bytes - done, 0); });
  }
  // Receives what is there of `bytes`, of which `got` are there already. Returns false if the peer has gone.
  bool ReceiveSome(void* data, size_t bytes, size_t& got) {
    const ssize_t moved = recv(connection_.get(), static_cast<char*>(data) + got, bytes - got, 0);
    if (moved > 0) got += static_cast<size_t>(moved);
    return moved > 0 || (moved < 0 && (errno == EAGAIN || errno == EINTR));
  }

 private:
  template <typename MoveSome>
  absl::Status Move(short event, size_t bytes, absl::Duration deadline, MoveSome some) {
    for (size_t done = 0; done < bytes;) {
      const ssize_t moved = some(done);
      if (moved > 0) {
        done += static_cast<size_t>(moved);
      } else if (moved == 0) {
        return ErrorStream(absl::StatusCode::kUnavailable) << "the connection was closed";
      } else if (errno == EAGAIN || errno == EINTR) {
        if (!AwaitReady(connection_.get(), event, deadline))
          return ErrorStream(absl::StatusCode::kDeadlineExceeded) << "there was no answer";
      } else {
        return SystemError("the connection was lost", errno);
      }
    }
    return absl::OkStatus();
  }

  Descriptor connection_;
};

constexpr char kSecrets[] = ": LOCKSTEP_SECRET, or the content of LOCKSTEP_SECRET_FILE, must be equal on all ranks";

// Returns an error if only one of the two has a secret.
absl::Status CheckBothOrNone(const std::string& one, bool one_has, const std::string& other, bool other_has) {
  if (one_has == other_has) return absl::OkStatus();
  return ErrorStream(absl::StatusCode::kPermissionDenied)
         << (one_has ? one : other) << " has a secret, and " << (one_has ? other : one) << " has none" << kSecrets;
}

std::string PlaceOf(const Rendezvous& place) {
  if (place.port == 0) return "the place that rank 0 writes into " + place.file;
  return place.host + ":" + std::to_string(place.port);
}

// --- Rank 0 ----------------------------------------------------------------------------------------------------------

absl::StatusOr<Descriptor> Listen(const Rendezvous& place) {
  for (const int family : {AF_INET6, AF_INET}) {  // an IPv6 socket takes IPv4, too, where there is IPv6
    Descriptor listener(socket(family, SOCK_STREAM | SOCK_NONBLOCK | SOCK_CLOEXEC, 0));
    if (!listener) continue;
    const int on = 1, off = 0;
    setsockopt(listener.get(), SOL_SOCKET, SO_REUSEADDR, &on, sizeof(on));
    sockaddr_in6 six{};
    sockaddr_in four{};
    six.sin6_family = AF_INET6, four.sin_family = AF_INET;
    six.sin6_port = four.sin_port = htons(place.port);
    if (family == AF_INET6) setsockopt(listener.get(), IPPROTO_IPV6, IPV6_V6ONLY, &off, sizeof(off));
    const int bound = family == AF_INET6 ? bind(listener.get(), reinterpret_cast<sockaddr*>(&six), sizeof(six))
                                         : bind(listener.get(), reinterpret_cast<sockaddr*>(&four), sizeof(four));
    if (bound == 0 && listen(listener.get(), SOMAXCONN) == 0) return listener;
    if (errno == EADDRINUSE) {
      return FailedPrecondition() << "rank 0 cannot listen at port " << place.port
                                  << ", where the ranks meet, as another program does: another job on this host, or a "
                                  << "service. Choose another MASTER_PORT";
    }
    if (family == AF_INET) return SystemError("rank 0 cannot listen at port " + std::to_string(place.port), errno);
  }
  return SystemError("rank 0 cannot listen at port " + std::to_string(place.port), errno);
}

absl::StatusOr<uint16_t> PortOf(const Descriptor& listener) {
  sockaddr_storage address{};
  socklen_t length = sizeof(address);
  if (getsockname(listener.get(), reinterpret_cast<sockaddr*>(&address), &length) != 0)
    return SystemError("getsockname", errno);
  return ntohs(address.ss_family == AF_INET6 ? reinterpret_cast<const sockaddr_in6*>(&address)->sin6_port
                                             : reinterpret_cast<const sockaddr_in*>(&address)->sin_port);
}

// Rank 0, which has a connection to each other rank.
class Host final : public Introduction {
 public:
  Host(const Rendezvous& place, absl::Duration limit) : place_(place), limit_(limit) {}

  int rank() const override { return 0; }
  int size() const override { return place_.size; }

  absl::Status Meet() {
    const absl::Duration deadline = SteadyNow() + limit_;
    ASSIGN_OR_RETURN(const Descriptor listener, Listen(place_));
    std::optional<WrittenPlace> written;  // until all have met
    if (!place_.file.empty()) {
      ASSIGN_OR_RETURN(place_.port, PortOf(listener));
      if (place_.host.empty()) place_.host = HostName();
      ASSIGN_OR_RETURN(written, WrittenPlace::Write(place_));
    }
    std::vector<Newcomer> newcomers;
    while (static_cast<int>(peers_.size()) < place_.size - 1) {
      std::vector<pollfd> polled = {{.fd = listener.get(), .events = POLLIN, .revents = 0}};
      for (const Newcomer& each : newcomers)
        polled.push_back({.fd = each.peer.descriptor(), .events = POLLIN, .revents = 0});
      poll(polled.data(), polled.size(), 100);
      const absl::Duration now = SteadyNow();
      if (now >= deadline) return TellAll(Missing());
      for (int accepted; (accepted = accept4(listener.get(), nullptr, nullptr, SOCK_NONBLOCK | SOCK_CLOEXEC)) >= 0;) {
        ASSIGN_OR_RETURN(Newcomer newcomer, Ask(Peer(Descriptor(accepted)), now));
        newcomers.push_back(std::move(newcomer));
      }
      std::erase_if(newcomers, [&](Newcomer& each) { return !Hear(each, now); });
    }
    written.reset();  // before a rank can meet again
    for (auto& [rank, member] : peers_) RETURN_IF_ERROR(Say(rank, member, VerdictOf(absl::OkStatus()), {}));
    return absl::OkStatus();
  }

  absl::StatusOr<std::vector<std::byte>> Gather(std::span<const std::byte> mine) override {
    const absl::Duration deadline = SteadyNow() + limit_;
    std::vector<std::byte> all(mine.begin(), mine.end());
    for (auto& [rank, member] : peers_) {
      std::vector<std::byte> bytes(mine.size());
      absl::Status heard = member.peer.Receive(bytes.data(), bytes.size(), deadline);
      if (!heard.ok()) return TellAll(Annotate(heard, NameOf(rank, member)));
      all.insert(all.end(), bytes.begin(), bytes.end());
    }
    for (auto& [rank, member] : peers_)
      RETURN_IF_ERROR(Say(rank, member, VerdictOf(absl::OkStatus(), all.size()), all));
    return all;
  }

 private:
  struct Newcomer {
    Peer peer;
    Challenge challenge;
    Hello hello = {};
    size_t got = 0;
    absl::Duration until;
  };
  struct Member {
    Peer peer;
    std::string host;
  };

  static std::string NameOf(int rank, const Member& member) {
    return "rank " + std::to_string(rank) + " on host " + member.host + ", while the ranks meet";
  }

  // Asks a process that has connected for a hello.
  absl::StatusOr<Newcomer> Ask(Peer peer, absl::Duration now) const {
    Challenge challenge{.version = kVersion, .has_secret = !place_.secret.empty()};
    std::memcpy(challenge.magic, kMagic, sizeof(kMagic));
    ASSIGN_OR_RETURN(challenge.nonce, FreshNonce());
    (void)peer.Send(&challenge, sizeof(challenge), now);  // if it has gone, Hear notices
    return Newcomer{.peer = std::move(peer), .challenge = challenge, .until = now + kIntroduction};
  }

  // Hears a newcomer. Returns false once it is a member or was turned away.
  bool Hear(Newcomer& newcomer, absl::Duration now) {
    if (!newcomer.peer.ReceiveSome(&newcomer.hello, sizeof(Hello), newcomer.got) || now >= newcomer.until) return false;
    Hello& hello = newcomer.hello;
    const size_t known = std::min(newcomer.got, sizeof(kMagic));
    if (std::memcmp(hello.magic, kMagic, known) != 0) return false;  // something else, such as a browser
    if (newcomer.got < sizeof(Hello)) return true;
    hello.job[sizeof(hello.job) - 1] = hello.host[sizeof(hello.host) - 1] = '\0';
    absl::Status answered = Check(newcomer.challenge, hello);
    const absl::Duration deadline = now + kFarewell;
    if (answered.ok()) {
      const Proof proof = ProofOf(true, place_.secret, newcomer.challenge, hello);
      const Verdict verdict = VerdictOf(answered, sizeof(proof));
      answered = newcomer.peer.Send(&verdict, sizeof(verdict), deadline);
      if (answered.ok()) answered = newcomer.peer.Send(&proof, sizeof(proof), deadline);
      if (answered.ok()) peers_.emplace(hello.rank, Member{std::move(newcomer.peer), hello.host});
    } else {
      const Verdict verdict = VerdictOf(answered);
      (void)newcomer.peer.Send(&verdict, sizeof(verdict), deadline);
      refused_ = std::string(answered.message());
    }
    return false;
  }

  absl::Status Check(const Challenge& challenge, const Hello& hello) const {
    const std::string who = "process " + std::to_string(hello.process) + " on host " + hello.host;
    if (hello.version != kVersion) {
      return FailedPrecondition() << who << " has a Lockstep that meets by version " << hello.version
                                  << ", and rank 0 by version " << kVersion;
    }
    RETURN_IF_ERROR(CheckBothOrNone(who, hello.has_secret != 0, "rank 0 on host " + HostName(), HasSecret()));
    if (HasSecret() && !ProofsMatch(hello.proof, ProofOf(false, place_.secret, challenge, hello))) {
      return ErrorStream(absl::StatusCode::kPermissionDenied)
             << who << " has another secret than rank 0 on host " << HostName() << kSecrets;
    }
    if (hello.job != place_.job) {
      return FailedPrecondition() << who << " belongs to job '" << hello.job << "', and rank 0 on host " << HostName()
                                  << " to job '" << place_.job << "': two jobs meet at port " << place_.port;
    }
    if (hello.size != place_.size) {
      return FailedPrecondition() << who << " expects " << hello.size << " ranks, and rank 0 on host " << HostName()
                                  << " expects " << place_.size << ": WORLD_SIZE differs, or two jobs meet at port "
                                  << place_.port;
    }
    if (hello.rank < 1 || hello.rank >= place_.size || peers_.contains(hello.rank)) {
      return FailedPrecondition() << who << " is rank " << hello.rank << ", which another process is already";
    }
    return absl::OkStatus();
  }

  bool HasSecret() const { return !place_.secret.empty(); }

  absl::Status Missing() const {
    std::string names;
    for (int r = 1; r < place_.size; ++r) {
      if (!peers_.contains(r)) names += (names.empty() ? "rank " : ", rank ") + std::to_string(r);
    }
    ErrorStream error(absl::StatusCode::kDeadlineExceeded);
    error << "of " << place_.size << " ranks, " << names << " did not come to " << PlaceOf(place_) << " within "
          << absl::FormatDuration(limit_);
    if (!refused_.empty()) error << "; turned away: " << refused_;
    return error;
  }

  // Tells all members the error, and returns it.
  absl::Status TellAll(const absl::Status& error) {
    const Verdict verdict = VerdictOf(error);
    for (auto& [rank, member] : peers_) (void)member.peer.Send(&verdict, sizeof(verdict), SteadyNow() + kFarewell);
    return error;
  }

  absl::Status Say(int rank, Member& member, const Verdict& verdict, std::span<const std::byte> bytes) {
    const absl::Duration deadline = SteadyNow() + limit_;
    absl::Status said = member.peer.Send(&verdict, sizeof(verdict), deadline);
    if (said.ok()) said = member.peer.Send(bytes.data(), bytes.size(), deadline);
    return said.ok() ? said : TellAll(Annotate(said, NameOf(rank, member)));
  }

  Rendezvous place_;
  const absl::Duration limit_;
  std::map<int, Member> peers_;  // by rank
  std::string refused_;          // the last process that was turned away
};

// --- The other ranks -------------------------------------------------------------------------------------------------

// Connects to one of the host's addresses. Returns Unavailable if rank 0 may be there later.
absl::StatusOr<Peer> Connect(const Rendezvous& place, absl::Duration deadline) {
  addrinfo wanted{};
  wanted.ai_socktype = SOCK_STREAM;
  addrinfo* found = nullptr;
  const int failed = getaddrinfo(place.host.c_str(), std::to_string(place.port).c_str(), &wanted, &found);
  if (failed != 0) {
    return ErrorStream(absl::StatusCode::kUnavailable)
           << "the host '" << place.host << "' of rank 0 (MASTER_ADDR) has no address: " << gai_strerror(failed);
  }
  absl::Status last = NotFound();
  for (const addrinfo* each = found; each != nullptr; each = each->ai_next) {
    Descriptor connection(socket(each->ai_family, SOCK_STREAM | SOCK_NONBLOCK | SOCK_CLOEXEC, 0));
    int error = connection && connect(connection.get(), each->ai_addr, each->ai_addrlen) == 0 ? 0 : errno;
    if (error == EINPROGRESS) {
      socklen_t length = sizeof(error);
      if (!AwaitReady(connection.get(), POLLOUT, std::min(deadline, SteadyNow() + kAttempt))) error = ETIMEDOUT;
      else getsockopt(connection.get(), SOL_SOCKET, SO_ERROR, &error, &length);
    }
    if (error == 0) {
      freeaddrinfo(found);
      return Peer(std::move(connection));
    }
    last = SystemError("connecting", error);
  }
  freeaddrinfo(found);
  return last;
}

class Guest final : public Introduction {
 public:
  Guest(const Rendezvous& place, absl::Duration limit) : place_(place), limit_(limit), peer_(Descriptor()) {}

  int rank() const override { return place_.rank; }
  int size() const override { return place_.size; }

  absl::Status Meet() {
    const absl::Duration deadline = SteadyNow() + limit_;
    absl::Duration pause = kShortPause;
    while (true) {
      absl::Status met = place_.file.empty() ? absl::OkStatus() : ReadPlace(place_);
      absl::StatusOr<Peer> peer = met.ok() ? Connect(place_, deadline) : met;
      met = peer.status();
      if (met.ok()) {
        peer_ = *std::move(peer);
        met = Introduce(deadline);
        if (absl::IsDeadlineExceeded(met)) return Annotate(met, "what listens at " + PlaceOf(place_));
        // Rank 0 answers when all have come, which may be later than its own limit began.
        if (met.ok()) met = Hear(deadline + kFarewell, nullptr);
      }
      if (!absl::IsUnavailable(met)) return met;
      if (SteadyNow() + pause >= deadline) {
        return ErrorStream(absl::StatusCode::kDeadlineExceeded)
               << "rank " << place_.rank << " has not met rank 0 at " << PlaceOf(place_) << " within "
               << absl::FormatDuration(limit_) << ": " << met.message();
      }
      absl::SleepFor(pause);
      pause = std::min(2 * pause, kLongPause);
    }
  }

  absl::StatusOr<std::vector<std::byte>> Gather(std::span<const std::byte> mine) override {
    const absl::Duration deadline = SteadyNow() + limit_;
    std::vector<std::byte> all(mine.size() * static_cast<size_t>(place_.size));
    absl::Status gathered = peer_.Send(mine.data(), mine.size(), deadline);
    if (gathered.ok()) gathered = Hear(deadline, &all);
    if (absl::IsUnavailable(gathered)) return Annotate(gathered, "rank 0 at " + PlaceOf(place_) + ", while ranks meet");
    RETURN_IF_ERROR(gathered);
    return all;
  }

 private:
  // Says who this rank is, and returns once each side has proven to the other that it belongs to the job.
  absl::Status Introduce(absl::Duration deadline) {
    Challenge challenge;
    RETURN_IF_ERROR(HearMessage(challenge, deadline));
    const std::string rank_0 = "rank 0 at " + PlaceOf(place_), here = "rank " + std::to_string(place_.rank);
    if (challenge.version != kVersion) {
      return FailedPrecondition() << rank_0 << " has a Lockstep that meets by version " << challenge.version << ", and "
                                  << here << " by version " << kVersion;
    }
    const bool has_secret = !place_.secret.empty();
    Hello hello{.version = kVersion, .rank = place_.rank, .size = place_.size, .process = getpid()};
    std::memcpy(hello.magic, kMagic, sizeof(kMagic));
    CopyText(place_.job, hello.job, sizeof(hello.job));
    CopyText(HostName(), hello.host, sizeof(hello.host));
    hello.has_secret = has_secret;
    ASSIGN_OR_RETURN(hello.nonce, FreshNonce());
    // Without a secret there, it learns only that this rank has one.
    if (has_secret && challenge.has_secret != 0) hello.proof = ProofOf(false, place_.secret, challenge, hello);
    RETURN_IF_ERROR(peer_.Send(&hello, sizeof(hello), deadline));
    RETURN_IF_ERROR(CheckBothOrNone(rank_0, challenge.has_secret != 0, here, has_secret));
    std::vector<std::byte> bytes(sizeof(Proof));
    RETURN_IF_ERROR(Hear(deadline, &bytes));
    Proof proof;
    std::memcpy(proof.data(), bytes.data(), bytes.size());
    if (has_secret && !ProofsMatch(proof, ProofOf(true, place_.secret, challenge, hello))) {
      return ErrorStream(absl::StatusCode::kPermissionDenied)
             << rank_0 << " does not know the secret of " << here << kSecrets;
    }
    return absl::OkStatus();
  }

  template <typename Message>
  absl::Status HearMessage(Message& message, absl::Duration deadline) {
    constexpr size_t kBegin = sizeof(message.magic);
    RETURN_IF_ERROR(peer_.Receive(message.magic, kBegin, deadline));
    if (std::memcmp(message.magic, kMagic, kBegin) != 0) {
      return FailedPrecondition() << "what listens at " << PlaceOf(place_)
                                  << ", where the ranks meet, is no rank 0 of Lockstep";
    }
    return peer_.Receive(reinterpret_cast<char*>(&message) + kBegin, sizeof(message) - kBegin, deadline);
  }

  // Receives a verdict and, if it is good, what follows it.
  absl::Status Hear(absl::Duration deadline, std::vector<std::byte>* bytes) {
    Verdict verdict;
    RETURN_IF_ERROR(HearMessage(verdict, deadline));
    verdict.message[sizeof(verdict.message) - 1] = '\0';
    if (verdict.code != 0) return absl::Status(static_cast<absl::StatusCode>(verdict.code), verdict.message);
    if (bytes == nullptr) return absl::OkStatus();
    if (verdict.bytes != bytes->size()) {
      return FailedPrecondition() << "rank " << place_.rank << " expects " << bytes->size()
                                  << " bytes, and rank 0 sends " << verdict.bytes
                                  << ": their versions of Lockstep differ";
    }
    return peer_.Receive(bytes->data(), bytes->size(), deadline);
  }

  Rendezvous place_;
  const absl::Duration limit_;
  Peer peer_;
};

}  // namespace

absl::StatusOr<std::unique_ptr<Introduction>> Meet(const Rendezvous& place, absl::Duration limit) {
  if (place.rank == 0) {
    auto host = std::make_unique<Host>(place, limit);
    if (place.size > 1) RETURN_IF_ERROR(host->Meet());
    return host;
  }
  auto guest = std::make_unique<Guest>(place, limit);
  RETURN_IF_ERROR(guest->Meet());
  return guest;
}

}  // namespace lockstep
