// Connections of a parameter server, and the states of its workers. Their requests are in server_requests.cc.

#include "runtime/server/parameter_server.h"

#include <sys/epoll.h>
#include <sys/eventfd.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstring>
#include <utility>
#include <vector>

#include "core/status.h"
#include "runtime/process/clock.h"

namespace lockstep {
namespace {

constexpr uint32_t kChannel = 0;
// The bytes that are read from one worker before the others are served: requests of a few milliseconds, or one array.
constexpr size_t kTurnBytes = size_t{256} << 10;
// The time after a failure of the job in which its workers, which know of it, can leave.
constexpr absl::Duration kGrace = absl::Seconds(10);

absl::Status Watch(int poll, int descriptor, uint32_t events, int operation = EPOLL_CTL_ADD) {
  epoll_event event{.events = events, .data = {.fd = descriptor}};
  if (epoll_ctl(poll, operation, descriptor, &event) == 0) return absl::OkStatus();
  return ErrorStream(absl::StatusCode::kUnavailable) << "epoll_ctl: " << std::strerror(errno);
}

}  // namespace

absl::StatusOr<std::unique_ptr<ParameterServer>> ParameterServer::Create(const Options& options) {
  std::unique_ptr<ParameterServer> server(new ParameterServer(options));
  RETURN_IF_ERROR(server->Open());
  return server;
}

ParameterServer::ParameterServer(const Options& options) : options_(options) {
  workers_.tolerates_loss = options.tolerates_loss;
  workers_.all.resize(static_cast<size_t>(options.workers));
}

absl::Status ParameterServer::Open() {
  ASSIGN_OR_RETURN(listener_, SocketListener::Create(options_.interfaces));
  ASSIGN_OR_RETURN(probe_, Segment::CreateShared(1));
  arrivals_ = listener_->Open(kChannel);
  poll_ = Descriptor(epoll_create1(EPOLL_CLOEXEC));
  stop_ = Descriptor(eventfd(0, EFD_NONBLOCK | EFD_CLOEXEC));
  for (const int descriptor : {listener_->descriptor(), arrivals_, stop_.get()})
    RETURN_IF_ERROR(Watch(poll_.get(), descriptor, EPOLLIN));
  return absl::OkStatus();
}

void ParameterServer::Stop() {
  const uint64_t one = 1;
  (void)!write(stop_.get(), &one, sizeof(one));
}

absl::Status ParameterServer::Run() {
  began_ = SteadyNow();
  while (!IsOver()) {
    absl::StatusOr<int> patience = Patience();
    if (!patience.ok()) {
      Fail(patience.status());
      continue;
    }
    epoll_event events[32];
    const int count = epoll_wait(poll_.get(), events, std::size(events), *patience);
    for (int i = 0; i < count; ++i) {
      const int descriptor = events[i].data.fd;
      if (descriptor == stop_.get()) stopped_ = true;
      else if (descriptor == listener_->descriptor()) listener_->Accept();
      else if (descriptor == arrivals_) Welcome();
      else if (const auto rank = ranks_.find(descriptor); rank != ranks_.end()) Read(*clients_.at(rank->second));
    }
    Flush();
  }
  return failure_;
}

// Returns true if all workers have left, or had enough time to.
bool ParameterServer::IsOver() const {
  if (stopped_ || (!failure_.ok() && SteadyNow() - failed_at_ > kGrace)) return true;
  if (!failure_.ok()) return clients_.empty();
  return std::none_of(workers_.all.begin(), workers_.all.end(), [](const Worker& worker) { return worker.counts(); });
}

absl::StatusOr<int> ParameterServer::Patience() const {
  constexpr int kFor_ever = -1;
  const auto milliseconds = [](absl::Duration left) {
    return static_cast<int>(std::max<int64_t>(0, absl::ToInt64Milliseconds(left) + 1));
  };
  if (!failure_.ok()) return milliseconds(failed_at_ + kGrace - SteadyNow());
  for (int rank = 0; rank < workers_.size(); ++rank) {
    if (workers_[rank].life != Worker::Life::kExpected) continue;
    const absl::Duration left = began_ + options_.timeout - SteadyNow();
    if (left > absl::ZeroDuration()) return milliseconds(std::min(left, absl::Minutes(1)));
    return ErrorStream(absl::StatusCode::kDeadlineExceeded)
           << "worker " << rank << " has not arrived within " << absl::FormatDuration(options_.timeout);
  }
  return kFor_ever;
}

void ParameterServer::Welcome() {
  for (SocketListener::Arrival& arrival : listener_->Take(kChannel)) {
    const int rank = arrival.from, descriptor = arrival.connection.get();
    if (rank < 0 || rank >= workers_.size() || workers_[rank].life != Worker::Life::kExpected) continue;
    if (!Watch(poll_.get(), descriptor, EPOLLIN | EPOLLRDHUP).ok()) continue;
    workers_[rank].life = Worker::Life::kHere;
    ranks_[descriptor] = rank;
    clients_[rank] = std::make_unique<Client>(rank, std::move(arrival.connection));
    if (!failure_.ok()) Fail(failure_);
  }
}

// Reads at most `kTurnBytes`. Remaining bytes wake the next epoll_wait, after the messages of other workers. `client`
// may be destroyed afterwards.
void ParameterServer::Read(Client& client) {
  const int rank = client.rank;
  for (size_t budget = kTurnBytes; budget > 0;) {
    absl::StatusOr<std::optional<Message>> message = client.connection.Read(budget);
    if (!message.ok()) return Lose(rank, message.status());
    if (!message->has_value()) return;
    budget -= std::min<uint64_t>(budget, (*message)->memory_bytes);
    Take(client, std::move(**message));
    if (client.says_farewell) return Lose(rank, absl::OkStatus());
  }
}

// Sends queued messages. An unreachable worker is lost, which may queue messages for others.
void ParameterServer::Flush() {
  for (bool again = true; std::exchange(again, false);) {
    for (auto& [rank, client] : clients_) {
      const absl::Status status = client->connection.Write();
      const bool wants = client->connection.has_more_to_write();
      if (status.ok() && wants != client->is_watched_for_writing) {
        client->is_watched_for_writing = wants;
        (void)Watch(poll_.get(), client->connection.descriptor(),
                    EPOLLIN | EPOLLRDHUP | (wants ? static_cast<uint32_t>(EPOLLOUT) : 0u), EPOLL_CTL_MOD);
      }
      if (status.ok()) continue;
      Lose(rank, status);
      again = true;
      break;
    }
  }
}

// Handles a closed connection.
void ParameterServer::Lose(int rank, const absl::Status& why) {
  const auto client = clients_.find(rank);
  const absl::Status gives_up = client->second->gives_up;
  const bool is_done = client->second->says_farewell && gives_up.ok();
  const std::string what =
      gives_up.ok() ? " died: " + std::string(why.message()) : " gave up: " + std::string(gives_up.message());
  ranks_.erase(client->second->connection.descriptor());
  memory_of_gone_.push_back(std::move(client->second->memory));
  clients_.erase(client);
  at_exchange_.erase(rank);
  workers_[rank].life = is_done ? Worker::Life::kLeft : Worker::Life::kDied;
  if (!is_done && !options_.tolerates_loss)
    return Fail(ErrorStream(absl::StatusCode::kUnavailable) << workers_.Name(rank) << what);
  for (auto& [key, array] : arrays_) array->Forget(rank);
  AdvanceExchange();
}

void ParameterServer::Fail(const absl::Status& failure) {
  if (failure_.ok()) {
    failure_ = failure;
    failed_at_ = SteadyNow();
  }
  for (auto& [rank, client] : clients_) {
    Message lost = ErrorReply(failure_);
    lost.kind = MessageKind::kLost;
    client->connection.Post(std::move(lost));
  }
}

void ParameterServer::Reply(int worker, uint64_t request, Message reply) {
  const auto client = clients_.find(worker);
  if (client == clients_.end()) return;
  reply.kind = MessageKind::kReply;
  reply.request = request;
  client->second->connection.Post(std::move(reply));
}

}  // namespace lockstep
