#include "runtime/server/served_array.h"

#include <algorithm>
#include <cstring>
#include <utility>

#include "core/status.h"
#include "runtime/comm/collective/reduce.h"

namespace lockstep {

absl::StatusOr<std::unique_ptr<ServedArray>> ServedArray::Create(std::string key, const ArrayInfo& info,
                                                                 const std::byte* value, const Workers* workers,
                                                                 Reply reply) {
  std::unique_ptr<ServedArray> array(new ServedArray(std::move(key), info, workers, std::move(reply)));
  ASSIGN_OR_RETURN(array->current_, array->FreeMemory());
  const size_t bytes = info.piece_type().num_bytes();
  if (bytes > 0) std::memcpy(array->memory_[array->current_].segment->data(), value, bytes);
  return array;
}

ServedArray::ServedArray(std::string key, const ArrayInfo& info, const Workers* workers, Reply reply)
    : key_(std::move(key)),
      info_(info),
      workers_(*workers),
      reply_(std::move(reply)),
      per_worker_(static_cast<size_t>(workers->size())) {}

void ServedArray::Take(int worker, Message message, const std::byte* gradient) {
  waiting_.push_back({worker, std::move(message), gradient});
  Advance();
}

absl::Status ServedArray::Assign(const std::byte* value) {
  ASSIGN_OR_RETURN(const size_t next, FreeMemory());
  const size_t bytes = info_.piece_type().num_bytes();
  if (bytes > 0) std::memcpy(memory_[next].segment->data(), value, bytes);
  current_ = next;
  return absl::OkStatus();
}

void ServedArray::Release(int worker, uint64_t request) {
  for (Memory& memory : memory_) {
    std::erase_if(memory.readers,
                  [&](const Reader& reader) { return reader.worker == worker && reader.request == request; });
  }
}

void ServedArray::Forget(int worker) {
  for (Memory& memory : memory_)
    std::erase_if(memory.readers, [&](const Reader& reader) { return reader.worker == worker; });
  // Its pushes before it left count. If it died, gradients that are not part of an update yet do not count.
  const bool has_died = workers_[worker].life == Worker::Life::kDied;
  std::erase_if(waiting_, [&](const Request& request) {
    return request.worker == worker && (has_died || request.message.kind != MessageKind::kPush);
  });
  if (has_died) per_worker_[static_cast<size_t>(worker)].round.clear();
  Advance();
}

// Serves all requests that need not wait.
void ServedArray::Advance() {
  bool goes_on = true;
  while (goes_on) {
    goes_on = false;
    std::vector<bool> waits(per_worker_.size(), false);
    for (auto request = waiting_.begin(); request != waiting_.end();) {
      const auto worker = static_cast<size_t>(request->worker);
      if (waits[worker] || !Serve(*request)) {
        waits[worker] = true;
        ++request;
      } else {
        request = waiting_.erase(request);
        goes_on = true;
      }
    }
    if (info_.synchronous) CompleteRound();
  }
  Refuse();
}

// Returns true if the request is finished.
bool ServedArray::Serve(Request& request) {
  if (const absl::Status status = Check(request); !status.ok()) {
    reply_(request.worker, request.message.request, ErrorReply(status));
    return true;
  }
  if (MustWait(request)) return false;
  if (request.message.kind == MessageKind::kPush) Push(request);
  else ReplyWithValue(request);
  return true;
}

absl::Status ServedArray::Check(const Request& request) const {
  const auto bytes = static_cast<int64_t>(info_.piece_type().num_bytes());
  if (request.message.kind == MessageKind::kPush) {
    const auto given = static_cast<int64_t>(request.message.memory_bytes > 0 ? request.message.memory_bytes
                                                                             : request.message.bytes.size());
    if (given != bytes)
      return InvalidArgument() << "key " << key_ << ": a gradient of " << given << " bytes, expected " << bytes;
    if (!info_.synchronous && update_ == nullptr) {
      return FailedPrecondition()
             << "key " << key_
             << ": asynchronous servers need to know the update: set an optimizer before the first push";
    }
  }
  if (request.message.kind == MessageKind::kPullRanges && request.message.bytes.size() % (2 * sizeof(int64_t)) != 0)
    return InvalidArgument() << "key " << key_ << ": ranges of " << request.message.bytes.size() << " bytes";
  return absl::OkStatus();
}

bool ServedArray::MustWait(const Request& request) const {
  const PerWorker& own = per_worker_[static_cast<size_t>(request.worker)];
  if (info_.synchronous) {
    if (request.message.kind == MessageKind::kPush) return !own.round.empty();
    return rounds_ < request.message.version;
  }
  if (info_.max_staleness < 0) return false;
  int64_t slowest = own.pushed;
  for (int rank = 0; rank < workers_.size(); ++rank) {
    if (workers_[rank].counts()) slowest = std::min(slowest, per_worker_[static_cast<size_t>(rank)].pushed);
  }
  return own.pushed - slowest > info_.max_staleness;
}

void ServedArray::Push(Request& request) {
  PerWorker& own = per_worker_[static_cast<size_t>(request.worker)];
  if (info_.synchronous) {
    own.round.push_back(std::move(request));
    return;
  }
  const absl::Status status = Apply(request.gradient);
  if (status.ok()) {
    ++staleness_[version_ - own.pulled_version - own.pushed_since];
    ++version_;
    ++own.pushed;
    ++own.pushed_since;
  }
  Message reply = ErrorReply(status);
  reply.version = version_;
  reply_(request.worker, request.message.request, std::move(reply));
}

// Runs the update if the gradients of all workers are present.
void ServedArray::CompleteRound() {
  int there = 0;
  for (int rank = 0; rank < workers_.size(); ++rank) {
    const bool has = !per_worker_[static_cast<size_t>(rank)].round.empty();
    there += has;
    if (!has && (workers_[rank].counts() || !workers_.tolerates_loss)) return;
  }
  if (there == 0) return;
  if (sum_ == nullptr) sum_ = std::make_unique_for_overwrite<std::byte[]>(info_.piece_type().num_bytes());
  Sum(sum_.get());
  const absl::Status status = Apply(sum_.get());
  if (status.ok()) ++version_;
  ++rounds_;
  for (PerWorker& each : per_worker_) {
    if (each.round.empty()) continue;
    ++each.pushed;
    Message reply = ErrorReply(status);
    reply.version = version_;
    reply_(each.round.front().worker, each.round.front().message.request, std::move(reply));
    each.round.clear();
  }
}

// Adds the gradients of a round in worker order.
void ServedArray::Sum(std::byte* sum) const {
  std::vector<const std::byte*> inputs;
  for (const PerWorker& each : per_worker_) {
    if (!each.round.empty()) inputs.push_back(each.round.front().gradient);
  }
  std::byte* const outputs[] = {sum};
  Reduce({.dtype = info_.type.dtype, .count = info_.count, .inputs = inputs, .outputs = outputs});
}

// Synchronous: refuses all waiting requests if a worker will never push again.
void ServedArray::Refuse() {
  const int missed = workers_.MissingForever();
  if (!info_.synchronous || missed < 0 || !per_worker_[static_cast<size_t>(missed)].round.empty()) return;
  const absl::Status status = FailedPrecondition()
                              << "key " << key_ << " waits for the gradient of " << workers_.Describe(missed);
  for (PerWorker& each : per_worker_) {
    for (const Request& request : each.round) reply_(request.worker, request.message.request, ErrorReply(status));
    each.round.clear();
  }
  for (const Request& request : std::exchange(waiting_, {}))
    reply_(request.worker, request.message.request, ErrorReply(status));
}

// Replies to a pull.
void ServedArray::ReplyWithValue(const Request& request) {
  Memory& memory = memory_[current_];
  Message reply;
  reply.version = version_;
  if (request.message.kind == MessageKind::kPullRanges) {
    const size_t element = SizeOf(info_.type.dtype), count = request.message.bytes.size() / sizeof(int64_t);
    const auto* ranges = reinterpret_cast<const int64_t*>(request.message.bytes.data());
    int64_t elements = 0;
    for (size_t i = 0; i < count; i += 2) {
      if (ranges[i] < 0 || ranges[i + 1] < 0 || ranges[i] > info_.count || ranges[i + 1] > info_.count - ranges[i]) {
        const absl::Status status = InvalidArgument() << "key " << key_ << ": elements " << ranges[i] << " to "
                                                      << ranges[i] + ranges[i + 1] << " of " << info_.count;
        return reply_(request.worker, request.message.request, ErrorReply(status));
      }
      elements += ranges[i + 1];
    }
    reply.bytes = MessageBytes(static_cast<size_t>(elements) * element);
    std::byte* to = reply.bytes.data();
    for (size_t i = 0; i < count; i += 2) {
      const size_t bytes = static_cast<size_t>(ranges[i + 1]) * element;
      if (bytes > 0) std::memcpy(to, memory.segment->data() + static_cast<size_t>(ranges[i]) * element, bytes);
      to += bytes;
    }
  } else if (const size_t bytes = info_.piece_type().num_bytes(); request.message.number == 1 && bytes > 0) {
    reply.memory = {.segment = memory.segment->nonce(),
                    .offset = 0,
                    .descriptor = memory.segment->descriptor(),
                    .nonce = memory.segment->nonce()};
    reply.memory_bytes = bytes;
    memory.readers.push_back({request.worker, request.message.request});
  } else if (bytes > 0) {
    reply.bytes = MessageBytes(bytes);
    std::memcpy(reply.bytes.data(), memory.segment->data(), bytes);
  }
  PerWorker& own = per_worker_[static_cast<size_t>(request.worker)];
  own.pulled_version = version_;
  own.pushed_since = 0;
  reply_(request.worker, request.message.request, std::move(reply));
}

// Writes the updated value to other memory, which then holds the value.
absl::Status ServedArray::Apply(const std::byte* gradient) {
  ASSIGN_OR_RETURN(const size_t next, FreeMemory());
  std::byte* const to = memory_[next].segment->data();
  if (update_ == nullptr) {
    const size_t bytes = info_.piece_type().num_bytes();
    if (bytes > 0) std::memcpy(to, gradient, bytes);
  } else {
    RETURN_IF_ERROR(Annotate(update_->Run(memory_[current_].segment->data(), gradient, to), "key " + key_));
  }
  current_ = next;
  return absl::OkStatus();
}

absl::StatusOr<size_t> ServedArray::FreeMemory() {
  for (size_t i = 0; i < memory_.size(); ++i) {
    if (i != current_ && memory_[i].readers.empty()) return i;
  }
  ASSIGN_OR_RETURN(std::shared_ptr<Segment> segment, Segment::CreateShared(info_.piece_type().num_bytes()));
  memory_.push_back({std::move(segment), {}});
  return memory_.size() - 1;
}

std::string ServedArray::Describe(int worker, uint64_t request) const {
  const auto is_it = [&](const Request& each) { return each.worker == worker && each.message.request == request; };
  bool waits = std::any_of(waiting_.begin(), waiting_.end(), is_it);
  for (const PerWorker& each : per_worker_) waits = waits || std::any_of(each.round.begin(), each.round.end(), is_it);
  if (!waits) return "";
  std::string missing;
  const PerWorker& own = per_worker_[static_cast<size_t>(worker)];
  for (int rank = 0; rank < workers_.size(); ++rank) {
    const PerWorker& other = per_worker_[static_cast<size_t>(rank)];
    const bool is_late = info_.synchronous ? other.round.empty() : own.pushed - other.pushed > info_.max_staleness;
    if (is_late && rank != worker && workers_[rank].counts())
      missing += (missing.empty() ? "" : "; ") + workers_.Describe(rank);
  }
  return "key " + key_ + " waits for the gradient of " + (missing.empty() ? "no worker" : missing);
}

}  // namespace lockstep
