// Connections of a worker's client to the servers, and its waits.

#include <poll.h>
#include <unistd.h>

#include <algorithm>
#include <cstdio>
#include <cstring>
#include <optional>
#include <utility>

#include "core/status.h"
#include "runtime/process/clock.h"
#include "runtime/process/process.h"
#include "runtime/server/server_client.h"

namespace lockstep {
namespace {

// The time for a server to answer what a request waits for, and for pushes at the end.
constexpr absl::Duration kAnswerTime = absl::Seconds(2);
// Between calls of a ScopedCheck during a wait.
constexpr absl::Duration kNap = absl::Milliseconds(50);
// Smaller values travel in their message, because two copies take less time than sharing.
constexpr size_t kSmall = 4096;

int Milliseconds(absl::Duration duration) {
  return static_cast<int>(
      std::clamp<int64_t>(absl::ToInt64Milliseconds(absl::Ceil(duration, absl::Milliseconds(1))), 0, 60'000));
}

absl::StatusOr<Descriptor> ConnectTo(const ServerAddress& server, const ListenerInfo& here, int rank,
                                     absl::Duration end) {
  Connecting connecting(WaysTo(here, server.listener), server.listener,
                        Greeting{.nonce = server.listener.nonce, .channel = 0, .from = rank});
  for (;;) {
    ASSIGN_OR_RETURN(const bool is_there, connecting.Step());
    if (is_there) return connecting.Release();
    if (SteadyNow() >= end) return ErrorStream(absl::StatusCode::kDeadlineExceeded) << "it does not answer";
    AwaitReady(connecting.descriptor(), connecting.wants_to_write() ? POLLOUT : POLLIN,
               std::min(connecting.deadline(), end));
  }
}

}  // namespace

absl::StatusOr<std::unique_ptr<ServerClient>> ServerClient::Connect(const std::vector<ServerAddress>& servers,
                                                                    const Options& options) {
  std::unique_ptr<ServerClient> client(new ServerClient(options));
  ASSIGN_OR_RETURN(const std::shared_ptr<SocketListener> own, SocketListener::Create(options.interfaces));
  const absl::Duration end = SteadyNow() + options.timeout;
  for (size_t server = 0; server < servers.size(); ++server) {
    absl::StatusOr<Descriptor> connection = ConnectTo(servers[server], own->info(), options.rank, end);
    if (!connection.ok()) {
      return Annotate(connection.status(), "server " + std::to_string(server) + " on host " + servers[server].host);
    }
    client->links_.push_back(std::make_unique<Link>(servers[server], *std::move(connection)));
  }
  RETURN_IF_ERROR(client->Greet());
  return client;
}

ServerClient::~ServerClient() { Leave(); }

void ServerClient::Leave() {
  if (std::exchange(has_left_, true)) return;
  const absl::Duration end = SteadyNow() + std::min(kAnswerTime, options_.timeout);
  const auto has_more = [this] {
    const bool writes = std::any_of(links_.begin(), links_.end(),
                                    [](const auto& link) { return link->connection.has_more_to_write(); });
    return writes || std::any_of(requests_.begin(), requests_.end(), [](const auto& request) {
             return request.second.kind == MessageKind::kPush && !request.second.is_done;
           });
  };
  while (failure_.ok() && has_more() && SteadyNow() < end) Progress(end - SteadyNow());
  for (const auto& link : links_) {
    Message farewell = ErrorReply(failure_);
    farewell.kind = MessageKind::kGoodbye;
    link->connection.Post(std::move(farewell));
    (void)link->connection.Write();
  }
  AwaitFarewells(SteadyNow() + options_.timeout);
}

// A server that has received the goodbye closes the connection. If it does not in time, it is stopped, and the end of
// this process must not wait for it.
void ServerClient::AwaitFarewells(absl::Duration end) {
  for (size_t server = 0; server < links_.size() && failure_.ok(); ++server) {
    MessageConnection& connection = links_[server]->connection;
    while (connection.Write().ok()) {
      const absl::StatusOr<std::optional<Message>> message = connection.Read();
      if (!message.ok()) break;
      if (message->has_value()) continue;
      if (SteadyNow() >= end) {
        std::fprintf(stderr, "lockstep: %s; waited for %s at the end\n",
                     std::string(Fail(DescribeSilence(server)).message()).c_str(),
                     absl::FormatDuration(options_.timeout).c_str());
        break;
      }
      AwaitReady(connection.descriptor(), POLLIN | (connection.has_more_to_write() ? POLLOUT : 0), end);
    }
  }
}

void ServerClient::CloseConnections() {
  has_left_ = true;
  links_.clear();
}

std::string ServerClient::Name(size_t server) const {
  const ServerAddress& address = links_[server]->address;
  return "server " + std::to_string(server) + " (rank " + std::to_string(options_.workers + static_cast<int>(server)) +
         " of the job, process " + std::to_string(address.process) + " on host " + address.host + ")";
}

// Determines which memory can be shared with each server.
absl::Status ServerClient::Greet() {
  ASSIGN_OR_RETURN(const std::shared_ptr<Segment> probe, Segment::CreateShared(1));
  std::vector<std::pair<size_t, Message>> hellos;
  for (size_t server = 0; server < links_.size(); ++server) {
    Message hello;
    hello.kind = MessageKind::kHello;
    hello.name = HostName();
    hello.number = getpid();
    if (options_.shares_memory)
      hello.memory = {.segment = 1, .descriptor = probe->descriptor(), .nonce = probe->nonce()};
    hellos.emplace_back(server, std::move(hello));
  }
  ASSIGN_OR_RETURN(const std::vector<Message> replies, Call(std::move(hellos)));
  for (size_t server = 0; server < links_.size(); ++server) {
    const Message& reply = replies[server];
    links_[server]->takes_memory = options_.shares_memory && reply.number == 1;
    links_[server]->shows_memory =
        options_.shares_memory &&
        Segment::Open(static_cast<int>(reply.version), reply.memory.descriptor, reply.memory.nonce).ok();
  }
  return absl::OkStatus();
}

absl::Status ServerClient::CheckUsable() {
  RETURN_IF_ERROR(failure_);
  if (has_left_) return FailedPrecondition() << "this worker has left its servers";
  return std::exchange(push_error_, absl::OkStatus());
}

// Puts a value, or its location, into the message.
absl::Status ServerClient::Attach(Message& message, Request& request, const std::byte* data, size_t bytes) {
  if (bytes >= kSmall && links_[request.server]->takes_memory) {
    ASSIGN_OR_RETURN(PeerMemory::Located staged, memory_.Stage(bytes));
    std::memcpy(staged.segment->data(), data, bytes);
    message.memory = staged.ref;
    message.memory_bytes = bytes;
    request.segment = std::move(staged.segment);
    return absl::OkStatus();
  }
  message.bytes = MessageBytes(bytes);
  if (bytes > 0) std::memcpy(message.bytes.data(), data, bytes);
  return absl::OkStatus();
}

absl::StatusOr<uint64_t> ServerClient::Send(size_t server, Message message, Request request) {
  RETURN_IF_ERROR(failure_);
  const uint64_t id = next_request_++;
  message.request = id;
  request.server = server;
  request.kind = message.kind;
  request.key = message.name;
  requests_.emplace(id, std::move(request));
  links_[server]->connection.Post(std::move(message));
  if (const absl::Status status = links_[server]->connection.Write(); !status.ok()) {
    return Fail(ErrorStream(status.code()) << Name(server) << " died: " << status.message());
  }
  return id;
}

// Sends all messages. Returns their replies in order, or the first error.
absl::StatusOr<std::vector<Message>> ServerClient::Call(std::vector<std::pair<size_t, Message>> messages) {
  std::vector<uint64_t> sent;
  for (auto& [server, message] : messages) {
    ASSIGN_OR_RETURN(const uint64_t id, Send(server, std::move(message)));
    sent.push_back(id);
  }
  RETURN_IF_ERROR(Await(sent));
  std::vector<Message> replies;
  absl::Status status;
  for (const uint64_t id : sent) {
    absl::StatusOr<Message> reply = Finish(id);
    if (reply.ok()) replies.push_back(*std::move(reply));
    else if (status.ok()) status = reply.status();
  }
  RETURN_IF_ERROR(status);
  return replies;
}

// Returns when all requests have their replies. A completed push is no longer a request.
absl::Status ServerClient::Await(std::span<const uint64_t> requests) {
  const absl::Duration begin = SteadyNow(), end = begin + options_.timeout;
  absl::Duration look = check_ ? begin + kNap : end;
  for (const uint64_t id : requests) {
    for (auto request = requests_.find(id); request != requests_.end() && !request->second.is_done;
         request = requests_.find(id)) {
      RETURN_IF_ERROR(failure_);
      const absl::Duration now = SteadyNow();
      if (now >= end) return Late(id);
      if (now >= look) {
        RETURN_IF_ERROR(RunCheck());
        look = now + kNap;
      }
      Progress(std::min(look, end) - now);
    }
  }
  return absl::OkStatus();
}

absl::Status ServerClient::RunCheck() {
  const absl::Status status = check_();
  return status.ok() ? status : Fail(status);
}

absl::StatusOr<Message> ServerClient::Finish(uint64_t id) {
  const auto request = requests_.find(id);
  LOCKSTEP_CHECK(request != requests_.end()) << "request " << id << " was waited for already";
  Message reply = std::move(request->second.reply);
  requests_.erase(request);
  RETURN_IF_ERROR(StatusOf(reply));
  return reply;
}

void ServerClient::Progress(absl::Duration limit) {
  std::vector<pollfd> events;
  for (const auto& link : links_) {
    const int16_t wanted = static_cast<int16_t>(POLLIN | (link->connection.has_more_to_write() ? POLLOUT : 0));
    events.push_back({.fd = link->connection.descriptor(), .events = wanted, .revents = 0});
  }
  if (poll(events.data(), events.size(), Milliseconds(limit)) <= 0) return;
  for (size_t server = 0; server < links_.size() && failure_.ok(); ++server) {
    MessageConnection& connection = links_[server]->connection;
    absl::Status status = connection.Write();
    // Also reads messages that arrived before the connection was lost.
    for (bool more = events[server].revents != 0; more && failure_.ok();) {
      absl::StatusOr<std::optional<Message>> message = connection.Read();
      more = message.ok() && message->has_value();
      if (more) Take(server, std::move(**message));
      else if (!message.ok()) status = message.status();
    }
    if (!status.ok() && failure_.ok())
      (void)Fail(ErrorStream(status.code()) << Name(server) << " died: " << status.message());
  }
}

void ServerClient::Take(size_t server, Message message) {
  if (message.kind == MessageKind::kLost) {
    (void)Fail(Annotate(StatusOf(message), Name(server) + " says"));
    return;
  }
  const auto found = requests_.find(message.request);
  if (found == requests_.end()) return;  // abandoned
  Request& request = found->second;
  if (request.kind == MessageKind::kPush) {
    if (push_error_.ok()) push_error_ = StatusOf(message);
    requests_.erase(found);
    return;
  }
  if (request.is_forgotten) {
    if (message.memory_bytes > 0) (void)Release(server, message.request, request.key);
    requests_.erase(found);
    return;
  }
  if (request.to != nullptr && message.code == absl::StatusCode::kOk) {
    if (const absl::Status status = Receive(server, message.request, request, message); !status.ok())
      message = ErrorReply(status);
  }
  request.reply = std::move(message);
  request.is_done = true;
}

// Copies the value of a pull.
absl::Status ServerClient::Receive(size_t server, uint64_t id, Request& request, const Message& reply) {
  const size_t bytes = reply.memory_bytes > 0 ? reply.memory_bytes : reply.bytes.size();
  if (bytes != request.bytes)
    return Internal() << "key " << request.key << ": " << bytes << " bytes received, expected " << request.bytes;
  if (reply.memory_bytes == 0) {
    if (bytes > 0) std::memcpy(request.to, reply.bytes.data(), bytes);
    return absl::OkStatus();
  }
  if (reply.memory.segment == 0) return Internal() << "a message names memory that is in no segment";
  const absl::StatusOr<std::byte*> value =
      memory_.Resolve(static_cast<int>(server), links_[server]->address.process, reply.memory, bytes);
  if (value.ok()) std::memcpy(request.to, *value, bytes);
  RETURN_IF_ERROR(Release(server, id, request.key));
  return value.status();
}

// Lets the server reuse the memory in the reply to a pull.
absl::Status ServerClient::Release(size_t server, uint64_t id, const std::string& key) {
  Message release;
  release.kind = MessageKind::kRelease;
  release.request = id;
  release.name = key;
  links_[server]->connection.Post(std::move(release));
  return links_[server]->connection.Write();
}

// Handles a timeout: asks the server what the request waits for, and fails with or without its answer.
absl::Status ServerClient::Late(uint64_t id) {
  const Request& request = requests_.at(id);
  const size_t server = request.server;
  const std::string limit = absl::FormatDuration(options_.timeout);
  Message ping;
  ping.kind = MessageKind::kPing;
  ping.number = static_cast<int64_t>(id);
  ASSIGN_OR_RETURN(const uint64_t asked, Send(server, std::move(ping)));
  const absl::Duration end = SteadyNow() + kAnswerTime;
  while (failure_.ok() && !requests_.at(asked).is_done && SteadyNow() < end) Progress(end - SteadyNow());
  RETURN_IF_ERROR(failure_);
  if (requests_.at(asked).is_done) {
    const std::string why = requests_.at(asked).reply.text;
    return Fail(ErrorStream(absl::StatusCode::kDeadlineExceeded)
                << (why.empty() ? Name(server) + " has not answered" : why) << "; waited for " << limit);
  }
  return Fail(Annotate(DescribeSilence(server), "waited for " + limit));
}

// Returns the error for a server that does not answer.
absl::Status ServerClient::DescribeSilence(size_t server) const {
  const ServerAddress& address = links_[server]->address;
  const std::optional<ProcessFacts> facts =
      address.host == HostName() ? FactsOfProcess(address.process) : std::optional<ProcessFacts>();
  return ErrorStream(absl::StatusCode::kDeadlineExceeded)
         << Name(server) << (facts && facts->stopped ? " is stopped by a signal" : " gives no sign of life");
}

absl::Status ServerClient::Fail(const absl::Status& failure) {
  if (!failure_.ok()) return failure_;
  failure_ = failure;
  if (options_.on_failure) options_.on_failure();
  return failure_;
}

}  // namespace lockstep
