// The calls of a worker's client. Connections and waits are in client_transport.cc.

#include "runtime/server/server_client.h"

#include <algorithm>
#include <bit>
#include <cstring>
#include <optional>
#include <sstream>

#include "core/status.h"

namespace lockstep {
namespace {

Message MessageOf(MessageKind kind, std::string name, std::string text = {}) {
  Message message;
  message.kind = kind;
  message.name = std::move(name);
  message.text = std::move(text);
  return message;
}

const std::byte* BytesOf(const void* data) { return static_cast<const std::byte*>(data); }

}  // namespace

absl::Status ServerClient::Init(const std::string& key, const TensorType& type, const void* value,
                                const ArrayOptions& options) {
  RETURN_IF_ERROR(CheckUsable());
  if (const absl::StatusOr<Array*> there = Find(key); there.ok())
    return FailedPrecondition() << "key " << key << " is there already";
  else if (!absl::IsNotFound(there.status())) return there.status();
  bytes_.resize(links_.size());
  std::vector<uint64_t> sent;
  for (const PlacedPiece& piece : PlaceArray(type, options.bigarray_bound, bytes_)) {
    const ArrayInfo info{type, piece.begin, piece.count, options.synchronous, options.max_staleness};
    Message message = MessageOf(MessageKind::kInit, key, info.ToString());
    message.bytes = MessageBytes(info.piece_type().num_bytes());
    const size_t element = SizeOf(type.dtype);
    if (message.bytes.size() > 0)
      std::memcpy(message.bytes.data(), BytesOf(value) + static_cast<size_t>(piece.begin) * element,
                  message.bytes.size());
    ASSIGN_OR_RETURN(const uint64_t request, Send(static_cast<size_t>(piece.server), std::move(message)));
    sent.push_back(request);
  }
  return Wait({sent});
}

absl::StatusOr<ServerClient::Array*> ServerClient::Find(const std::string& key) {
  if (const auto array = arrays_.find(key); array != arrays_.end()) return &array->second;
  std::vector<std::pair<size_t, Message>> questions;
  for (size_t server = 0; server < links_.size(); ++server)
    questions.emplace_back(server, MessageOf(MessageKind::kFind, key));
  ASSIGN_OR_RETURN(const std::vector<Message> replies, Call(std::move(questions)));
  Array array;
  int64_t elements = 0;
  for (size_t server = 0; server < replies.size(); ++server) {
    if (replies[server].number == 0) continue;
    ASSIGN_OR_RETURN(const ArrayInfo info, ArrayInfo::Parse(replies[server].text));
    array.type = info.type;
    elements += info.count;
    array.pieces.emplace_back(server, info);
  }
  if (array.pieces.empty()) return NotFound() << "servers have no key " << key << "; init it first";
  if (elements != array.type.num_elements())
    return FailedPrecondition() << "key " << key << " is incomplete; has its init finished?";
  return &(arrays_[key] = std::move(array));
}

absl::StatusOr<TensorType> ServerClient::TypeOf(const std::string& key) {
  RETURN_IF_ERROR(CheckUsable());
  ASSIGN_OR_RETURN(const Array* const array, Find(key));
  return array->type;
}

absl::StatusOr<std::vector<TensorType>> ServerClient::PiecesOf(const std::string& key) {
  RETURN_IF_ERROR(CheckUsable());
  ASSIGN_OR_RETURN(const Array* const array, Find(key));
  std::vector<TensorType> types;
  for (const auto& [server, info] : array->pieces) types.push_back(info.piece_type());
  return types;
}

absl::Status ServerClient::Push(const std::string& key, const void* gradient) {
  RETURN_IF_ERROR(CheckUsable());
  ASSIGN_OR_RETURN(Array* const array, Find(key));
  RETURN_IF_ERROR(Await(array->pushes));
  array->pushes.clear();
  RETURN_IF_ERROR(CheckUsable());
  const size_t element = SizeOf(array->type.dtype);
  for (const auto& [server, info] : array->pieces) {
    Message message = MessageOf(MessageKind::kPush, key);
    Request request;
    request.server = server;
    RETURN_IF_ERROR(Attach(message, request, BytesOf(gradient) + static_cast<size_t>(info.begin) * element,
                           static_cast<size_t>(info.count) * element));
    ASSIGN_OR_RETURN(const uint64_t id, Send(server, std::move(message), std::move(request)));
    array->pushes.push_back(id);
  }
  ++array->pushed;
  Progress(absl::ZeroDuration());
  return failure_;
}

absl::StatusOr<ServerClient::Ticket> ServerClient::StartPull(const std::string& key, void* value) {
  RETURN_IF_ERROR(CheckUsable());
  ASSIGN_OR_RETURN(const Array* const array, Find(key));
  const size_t element = SizeOf(array->type.dtype);
  Ticket ticket;
  for (const auto& [server, info] : array->pieces) {
    Message message = MessageOf(MessageKind::kPull, key);
    message.version = array->pushed;
    message.number = links_[server]->shows_memory;
    Request request;
    request.to = static_cast<std::byte*>(value) + static_cast<size_t>(info.begin) * element;
    request.bytes = static_cast<size_t>(info.count) * element;
    ASSIGN_OR_RETURN(const uint64_t id, Send(server, std::move(message), std::move(request)));
    ticket.requests.push_back(id);
  }
  return ticket;
}

absl::Status ServerClient::Wait(const Ticket& ticket) {
  RETURN_IF_ERROR(Await(ticket.requests));
  absl::Status status;
  for (const uint64_t request : ticket.requests) {
    if (const absl::Status each = Finish(request).status(); status.ok()) status = each;
  }
  return status;
}

void ServerClient::Forget(const Ticket& ticket) {
  for (const uint64_t id : ticket.requests) {
    const auto request = requests_.find(id);
    if (request == requests_.end()) continue;
    if (request->second.is_done) requests_.erase(request);
    else request->second.is_forgotten = true;
  }
}

absl::Status ServerClient::Pull(const std::string& key, void* value) {
  ASSIGN_OR_RETURN(const Ticket ticket, StartPull(key, value));
  return Wait(ticket);
}

absl::Status ServerClient::PushPull(const std::string& key, const void* gradient, void* value) {
  RETURN_IF_ERROR(Push(key, gradient));
  return Pull(key, value);
}

absl::Status ServerClient::PullRows(const std::string& key, std::span<const int64_t> rows, void* values) {
  RETURN_IF_ERROR(CheckUsable());
  ASSIGN_OR_RETURN(const Array* const array, Find(key));
  if (array->type.shape.rank() == 0) return InvalidArgument() << "key " << key << " has no rows: it is " << array->type;
  const int64_t extent = array->type.shape.dims()[0];
  for (const int64_t row : rows) {
    if (row < 0 || row >= extent)
      return InvalidArgument() << "key " << key << " has rows 0 to " << extent - 1 << ", and no row " << row;
  }
  const int64_t per_row = extent == 0 ? 0 : array->type.num_elements() / extent;
  const size_t element = SizeOf(array->type.dtype);
  struct Part {
    std::vector<int64_t> ranges;      // in the server's format
    std::vector<std::byte*> targets;  // for each range
  };
  std::vector<Part> parts(array->pieces.size());
  for (size_t i = 0; i < rows.size(); ++i) {
    for (size_t p = 0; p < parts.size(); ++p) {
      const ArrayInfo& info = array->pieces[p].second;
      const int64_t row = rows[i] * per_row, begin = std::max(row, info.begin),
                    end = std::min(row + per_row, info.begin + info.count);
      if (begin >= end) continue;
      parts[p].ranges.insert(parts[p].ranges.end(), {begin - info.begin, end - begin});
      parts[p].targets.push_back(static_cast<std::byte*>(values) +
                                 (i * static_cast<size_t>(per_row) + static_cast<size_t>(begin - row)) * element);
    }
  }
  std::vector<std::pair<size_t, Message>> questions;
  for (size_t p = 0; p < parts.size(); ++p) {
    Message message = MessageOf(MessageKind::kPullRanges, key);
    message.version = array->pushed;
    message.bytes = MessageBytes(parts[p].ranges.size() * sizeof(int64_t));
    if (message.bytes.size() > 0) std::memcpy(message.bytes.data(), parts[p].ranges.data(), message.bytes.size());
    questions.emplace_back(array->pieces[p].first, std::move(message));
  }
  ASSIGN_OR_RETURN(const std::vector<Message> replies, Call(std::move(questions)));
  for (size_t p = 0; p < parts.size(); ++p) {
    const std::byte* from = replies[p].bytes.data();
    for (size_t i = 0; i < parts[p].targets.size(); ++i) {
      const size_t bytes = static_cast<size_t>(parts[p].ranges[2 * i + 1]) * element;
      std::memcpy(parts[p].targets[i], from, bytes);
      from += bytes;
    }
  }
  return absl::OkStatus();
}

absl::Status ServerClient::Flush() {
  RETURN_IF_ERROR(CheckUsable());
  for (auto& [key, array] : arrays_) RETURN_IF_ERROR(Await(std::exchange(array.pushes, {})));
  return CheckUsable();
}

absl::StatusOr<std::map<int, std::string>> ServerClient::Exchange(const std::string& text) {
  RETURN_IF_ERROR(CheckUsable());
  std::vector<std::pair<size_t, Message>> question;
  question.emplace_back(0, MessageOf(MessageKind::kExchange, "", text));
  ASSIGN_OR_RETURN(const std::vector<Message> replies, Call(std::move(question)));
  return DecodeTexts(replies[0].text);
}

absl::Status ServerClient::Barrier() {
  RETURN_IF_ERROR(Flush());
  return Exchange("").status();
}

absl::Status ServerClient::Assign(const std::string& key, const void* value) {
  RETURN_IF_ERROR(CheckUsable());
  ASSIGN_OR_RETURN(const Array* const array, Find(key));
  const size_t element = SizeOf(array->type.dtype);
  std::vector<std::pair<size_t, Message>> messages;
  for (const auto& [server, info] : array->pieces) {
    Message message = MessageOf(MessageKind::kAssign, key);
    message.bytes = MessageBytes(static_cast<size_t>(info.count) * element);
    if (message.bytes.size() > 0)
      std::memcpy(message.bytes.data(), BytesOf(value) + static_cast<size_t>(info.begin) * element,
                  message.bytes.size());
    messages.emplace_back(server, std::move(message));
  }
  return Call(std::move(messages)).status();
}

absl::Status ServerClient::SetUpdate(const std::string& key, const TextOf& text) {
  RETURN_IF_ERROR(CheckUsable());
  ASSIGN_OR_RETURN(const Array* const array, Find(key));
  std::vector<std::pair<size_t, Message>> questions;
  for (const auto& [server, info] : array->pieces) {
    ASSIGN_OR_RETURN(std::string of_piece, text(info.piece_type()));
    questions.emplace_back(server, MessageOf(MessageKind::kSetUpdate, key, std::move(of_piece)));
  }
  return Annotate(Call(std::move(questions)).status(), "key " + key);
}

absl::StatusOr<int64_t> ServerClient::Set(const std::string& setting, double value, const std::string& keys) {
  RETURN_IF_ERROR(CheckUsable());
  std::vector<std::pair<size_t, Message>> questions;
  for (size_t server = 0; server < links_.size(); ++server) {
    questions.emplace_back(server, MessageOf(MessageKind::kSet, setting, keys));
    questions.back().second.number = std::bit_cast<int64_t>(value);
  }
  ASSIGN_OR_RETURN(const std::vector<Message> replies, Call(std::move(questions)));
  int64_t pieces = 0;
  for (const Message& reply : replies) pieces += reply.number;
  return pieces;
}

absl::StatusOr<std::map<std::string, TensorType>> ServerClient::States(const std::string& key) {
  RETURN_IF_ERROR(CheckUsable());
  ASSIGN_OR_RETURN(const Array* const array, Find(key));
  const auto& [server, info] = array->pieces.front();
  std::vector<std::pair<size_t, Message>> question;
  question.emplace_back(server, MessageOf(MessageKind::kStates, key));
  ASSIGN_OR_RETURN(const std::vector<Message> replies, Call(std::move(question)));
  std::istringstream lines(replies[0].text);
  std::map<std::string, TensorType> states;
  for (std::string name, type; std::getline(lines, name) && std::getline(lines, type);) {
    ASSIGN_OR_RETURN(const ArrayInfo state, ArrayInfo::Parse(type));
    states[name] =
        state.type.shape == info.piece_type().shape ? TensorType{state.type.dtype, array->type.shape} : state.type;
  }
  return states;
}

absl::StatusOr<Tensor> ServerClient::ReadState(const std::string& key, const std::string& state) {
  ASSIGN_OR_RETURN(const auto states, States(key));
  const auto type = states.find(state);
  if (type == states.end()) return NotFound() << "key " << key << " has no state " << state;
  ASSIGN_OR_RETURN(const Array* const array, Find(key));
  std::vector<std::pair<size_t, Message>> questions;
  for (const auto& [server, info] : array->pieces)
    questions.emplace_back(server, MessageOf(MessageKind::kReadState, key, state));
  ASSIGN_OR_RETURN(const std::vector<Message> replies, Call(std::move(questions)));
  Tensor value(type->second);
  std::byte* to = value.mutable_bytes();
  size_t left = value.num_bytes();
  for (const Message& reply : replies) {  // for a state that each piece has, takes the first
    const size_t bytes = std::min(left, reply.bytes.size());
    if (bytes > 0) std::memcpy(to, reply.bytes.data(), bytes);
    to += bytes;
    left -= bytes;
  }
  return value;
}

absl::Status ServerClient::WriteState(const std::string& key, const std::string& state, const Tensor& value) {
  ASSIGN_OR_RETURN(const auto states, States(key));
  const auto type = states.find(state);
  if (type == states.end()) return NotFound() << "key " << key << " has no state " << state;
  if (value.type() != type->second) {
    return InvalidArgument() << "key " << key << ": state " << state << " is " << type->second << ", and not "
                             << value.type();
  }
  ASSIGN_OR_RETURN(const Array* const array, Find(key));
  const bool is_cut = type->second.shape == array->type.shape;
  std::vector<std::pair<size_t, Message>> questions;
  for (const auto& [server, info] : array->pieces) {
    const size_t element = SizeOf(value.dtype());
    const size_t begin = is_cut ? static_cast<size_t>(info.begin) * element : 0;
    Message message = MessageOf(MessageKind::kWriteState, key, state);
    message.bytes = MessageBytes(is_cut ? static_cast<size_t>(info.count) * element : value.num_bytes());
    if (message.bytes.size() > 0) std::memcpy(message.bytes.data(), value.bytes() + begin, message.bytes.size());
    questions.emplace_back(server, std::move(message));
  }
  return Call(std::move(questions)).status();
}

absl::StatusOr<std::map<int64_t, int64_t>> ServerClient::Staleness() {
  RETURN_IF_ERROR(CheckUsable());
  std::vector<std::pair<size_t, Message>> questions;
  for (size_t server = 0; server < links_.size(); ++server)
    questions.emplace_back(server, MessageOf(MessageKind::kStaleness, ""));
  ASSIGN_OR_RETURN(const std::vector<Message> replies, Call(std::move(questions)));
  std::map<int64_t, int64_t> all;
  for (const Message& reply : replies) {
    std::istringstream lines(reply.text);
    for (int64_t staleness = 0, updates = 0; lines >> staleness >> updates;) all[staleness] += updates;
  }
  return all;
}

}  // namespace lockstep
