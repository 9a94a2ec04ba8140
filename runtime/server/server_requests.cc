// The requests of workers to a parameter server.

#include <unistd.h>

#include <bit>
#include <cstring>
#include <sstream>
#include <utility>

#include "core/status.h"
#include "runtime/process/process.h"
#include "runtime/server/parameter_server.h"

namespace lockstep {

void ParameterServer::Take(Client& client, Message message) {
  const int rank = client.rank;
  const uint64_t request = message.request;
  switch (message.kind) {
    case MessageKind::kHello: return TakeHello(client, message);
    case MessageKind::kGoodbye:
      client.says_farewell = true;
      client.gives_up = StatusOf(message);
      return;
    case MessageKind::kExchange: return TakeExchange(rank, message);
    case MessageKind::kRelease:
      if (const auto array = arrays_.find(message.name); array != arrays_.end()) array->second->Release(rank, request);
      return;
    case MessageKind::kPush:
    case MessageKind::kPull:
    case MessageKind::kPullRanges: {
      const absl::StatusOr<ServedArray*> array = FindArray(message.name);
      size_t bytes = 0;
      absl::StatusOr<const std::byte*> gradient(nullptr);
      if (message.kind == MessageKind::kPush && message.memory_bytes > 0) gradient = Bytes(client, message, &bytes);
      if (!array.ok()) return Reply(rank, request, ErrorReply(array.status()));
      if (!gradient.ok()) return Reply(rank, request, ErrorReply(gradient.status()));
      if (message.kind == MessageKind::kPush && message.memory_bytes == 0) gradient = message.bytes.data();
      return (*array)->Take(rank, std::move(message), *gradient);
    }
    default: {
      absl::StatusOr<Message> reply = Answer(client, message);
      return Reply(rank, request, reply.ok() ? *std::move(reply) : ErrorReply(reply.status()));
    }
  }
}

absl::StatusOr<Message> ParameterServer::Answer(Client& client, const Message& message) {
  switch (message.kind) {
    case MessageKind::kInit: return Init(client, message);
    case MessageKind::kFind: return Find(message);
    case MessageKind::kAssign: return Assign(client, message);
    case MessageKind::kSetUpdate: return SetUpdate(message);
    case MessageKind::kSet: return Set(message);
    case MessageKind::kStates: return States(message);
    case MessageKind::kReadState: return ReadState(message);
    case MessageKind::kWriteState: return WriteState(client, message);
    case MessageKind::kStaleness: return Staleness();
    case MessageKind::kPing: return Describe(client.rank, message);
    default: return Internal() << "a message of kind " << static_cast<uint32_t>(message.kind);
  }
}

// Determines if worker and server can open each other's memory: the reply contains the result for the worker's memory,
// and a segment of the server to try.
void ParameterServer::TakeHello(Client& client, const Message& message) {
  Worker& worker = workers_[client.rank];
  worker.process = static_cast<int>(message.number);
  worker.host = message.name;
  const MemoryRef& probe = message.memory;
  worker.is_on_this_host = probe.descriptor >= 0 && Segment::Open(worker.process, probe.descriptor, probe.nonce).ok();
  Message reply;
  reply.number = worker.is_on_this_host;
  reply.version = getpid();
  reply.memory = {.segment = 1, .descriptor = probe_->descriptor(), .nonce = probe_->nonce()};
  Reply(client.rank, message.request, std::move(reply));
}

// Returns the value of a message.
absl::StatusOr<const std::byte*> ParameterServer::Bytes(Client& client, const Message& message, size_t* bytes) {
  *bytes = message.memory_bytes > 0 ? message.memory_bytes : message.bytes.size();
  if (message.memory_bytes == 0) return message.bytes.data();
  if (message.memory.segment == 0) return Internal() << "a message names memory that is in no segment";
  ASSIGN_OR_RETURN(const std::byte* data, client.memory.Resolve(client.rank, workers_[client.rank].process,
                                                                message.memory, message.memory_bytes));
  return data;
}

absl::StatusOr<ServedArray*> ParameterServer::FindArray(const std::string& key) {
  const auto array = arrays_.find(key);
  if (array == arrays_.end()) return NotFound() << "servers have no key " << key << "; init it first";
  return array->second.get();
}

absl::StatusOr<Update*> ParameterServer::FindUpdate(const std::string& key) {
  ASSIGN_OR_RETURN(ServedArray* const array, FindArray(key));
  if (array->update() == nullptr) return FailedPrecondition() << "key " << key << " has no optimizer";
  return array->update();
}

absl::StatusOr<Message> ParameterServer::Init(Client& client, const Message& message) {
  ASSIGN_OR_RETURN(const ArrayInfo info, ArrayInfo::Parse(message.text));
  if (arrays_.contains(message.name)) return FailedPrecondition() << "key " << message.name << " is there already";
  size_t bytes = 0;
  ASSIGN_OR_RETURN(const std::byte* const value, Bytes(client, message, &bytes));
  if (bytes != info.piece_type().num_bytes()) return Internal() << "key " << message.name << ": " << bytes << " bytes";
  const auto reply = [this](int worker, uint64_t request, Message text) { Reply(worker, request, std::move(text)); };
  ASSIGN_OR_RETURN(arrays_[message.name], ServedArray::Create(message.name, info, value, &workers_, reply));
  return Message();
}

absl::StatusOr<Message> ParameterServer::Find(const Message& message) {
  Message reply;
  const auto array = arrays_.find(message.name);
  reply.number = array != arrays_.end();
  if (reply.number) reply.text = array->second->info().ToString();
  return reply;
}

absl::StatusOr<Message> ParameterServer::Assign(Client& client, const Message& message) {
  ASSIGN_OR_RETURN(ServedArray* const array, FindArray(message.name));
  size_t bytes = 0;
  ASSIGN_OR_RETURN(const std::byte* const value, Bytes(client, message, &bytes));
  if (bytes != array->info().piece_type().num_bytes())
    return Internal() << "key " << message.name << ": " << bytes << " bytes";
  RETURN_IF_ERROR(array->Assign(value));
  return Message();
}

absl::StatusOr<Message> ParameterServer::SetUpdate(const Message& message) {
  ASSIGN_OR_RETURN(ServedArray* const array, FindArray(message.name));
  if (message.text == kAddUpdate) {
    array->set_update(MakeAddUpdate(array->info().piece_type()));
    return Message();
  }
  if (!options_.make_update) return Unimplemented() << "this server knows no update but `" << kAddUpdate << "`";
  ASSIGN_OR_RETURN(std::unique_ptr<Update> update, options_.make_update(message.text, array->info().piece_type()));
  array->set_update(std::move(update));
  return Message();
}

absl::StatusOr<Message> ParameterServer::Set(const Message& message) {
  Message reply;
  for (auto& [key, array] : arrays_) {
    const bool is_meant = message.text.empty() ? !key.starts_with(kProgramKeys) : key.starts_with(message.text);
    if (array->update() == nullptr || !is_meant) continue;
    ASSIGN_OR_RETURN(const bool has_it, array->update()->Set(message.name, std::bit_cast<double>(message.number)));
    reply.number += has_it;
  }
  return reply;
}

absl::StatusOr<Message> ParameterServer::States(const Message& message) {
  ASSIGN_OR_RETURN(Update* const update, FindUpdate(message.name));
  Message reply;
  for (const auto& [name, type] : update->states())
    reply.text += name + '\n' + ArrayInfo{.type = type, .count = type.num_elements()}.ToString() + '\n';
  return reply;
}

absl::StatusOr<Message> ParameterServer::ReadState(const Message& message) {
  ASSIGN_OR_RETURN(Update* const update, FindUpdate(message.name));
  Message reply;
  for (const auto& [name, type] : update->states()) {
    if (name == message.text) reply.bytes = MessageBytes(type.num_bytes());
  }
  RETURN_IF_ERROR(update->ReadState(message.text, reply.bytes.data()));
  return reply;
}

absl::StatusOr<Message> ParameterServer::WriteState(Client& client, const Message& message) {
  ASSIGN_OR_RETURN(Update* const update, FindUpdate(message.name));
  size_t bytes = 0;
  ASSIGN_OR_RETURN(const std::byte* const data, Bytes(client, message, &bytes));
  for (const auto& [name, type] : update->states()) {
    if (name == message.text && type.num_bytes() != bytes)
      return InvalidArgument() << "key " << message.name << ": state " << name << " has " << type.num_bytes()
                               << " bytes, not " << bytes;
  }
  RETURN_IF_ERROR(update->WriteState(message.text, data));
  return Message();
}

absl::StatusOr<Message> ParameterServer::Staleness() {
  std::map<int64_t, int64_t> all;
  for (const auto& [key, array] : arrays_) {
    for (const auto& [staleness, updates] : array->staleness()) all[staleness] += updates;
  }
  std::ostringstream text;
  for (const auto& [staleness, updates] : all) text << staleness << ' ' << updates << '\n';
  Message reply;
  reply.text = text.str();
  return reply;
}

absl::StatusOr<Message> ParameterServer::Describe(int worker, const Message& message) {
  const auto request = static_cast<uint64_t>(message.number);
  Message reply;
  for (const auto& [key, array] : arrays_) {
    reply.text = array->Describe(worker, request);
    if (!reply.text.empty()) return reply;
  }
  if (const auto waits = at_exchange_.find(worker); waits == at_exchange_.end() || waits->second.request != request)
    return reply;
  for (int rank = 0; rank < workers_.size(); ++rank) {
    if (workers_[rank].counts() && !at_exchange_.contains(rank))
      reply.text += (reply.text.empty() ? "a barrier waits for " : "; ") + workers_.Describe(rank);
  }
  return reply;
}

void ParameterServer::TakeExchange(int rank, const Message& message) {
  at_exchange_[rank] = {message.request, message.text};
  AdvanceExchange();
}

void ParameterServer::AdvanceExchange() {
  absl::Status status;
  if (const int missed = workers_.MissingForever(); missed >= 0) {
    status = FailedPrecondition() << "a barrier waits for " << workers_.Describe(missed);
  } else {
    for (int rank = 0; rank < workers_.size(); ++rank) {
      if (workers_[rank].counts() && !at_exchange_.contains(rank)) return;
    }
  }
  const std::map<int, ExchangeEntry> said = std::exchange(at_exchange_, {});
  std::map<int, std::string> texts;
  for (const auto& [rank, each] : said) texts[rank] = each.text;
  const std::string all = EncodeTexts(texts);
  for (const auto& [rank, each] : said) {
    Message reply = status.ok() ? Message() : ErrorReply(status);
    if (status.ok()) reply.text = all;
    Reply(rank, each.request, std::move(reply));
  }
}

}  // namespace lockstep
