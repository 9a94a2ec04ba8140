#include "runtime/comm/chain.h"

#include <algorithm>
#include <cstring>
#include <utility>

#include "absl/time/clock.h"
#include "core/dtype.h"
#include "core/status.h"
#include "runtime/comm/reduce.h"

namespace lockstep {
namespace {

constexpr size_t kCarsInFlight = 8;
constexpr int kUpTag = 0;
constexpr int kDownTag = 1;
constexpr uint32_t kChunkTags = 8192;
constexpr int kHeaderTag = 2 * kChunkTags;
constexpr int kTokenTag = 2 * kChunkTags + 1;
constexpr absl::Duration kMaxGrace = absl::Seconds(1);
constexpr absl::Duration kFlush = absl::Milliseconds(300);
constexpr absl::Duration kShortestNap = absl::Microseconds(50);
constexpr absl::Duration kLongestNap = absl::Milliseconds(1);
constexpr int kLooksBeforeNap = 200;

int ChunkTag(uint32_t index, int direction) { return static_cast<int>(index % kChunkTags) * 2 + direction; }

// What neighbouring groups compare.
struct Header {
  uint64_t sequence = 0;
  OpDescription description;
  char label[kLabelBytes] = {};
};

}  // namespace

// A chunk in flight, with what is under way for it.
struct Chain::Car {
  uint32_t index = 0;
  Chunk chunk;
  int source = 0;                  // the group from which the result spreads; of a reduction the last
  int last_up = 0, last_down = 0;  // the groups at which the result stops, upwards and downwards
  bool have_result = false;
  std::vector<std::byte> partial, result;
  std::unique_ptr<LinkRequest> prefix_receive, result_receive;
  int receives_from = -1;
  std::vector<std::unique_ptr<LinkRequest>> sends;
  bool done = false;
};

Chain::Chain(Group* group, Links* links) : group_(*group), links_(*links), begins_(links->group_begins()) {
  here_ = static_cast<int>(std::find(begins_.begin(), begins_.end(), group_.first_rank()) - begins_.begin());
  begins_.push_back(group_.world_size());
}

Chain::~Chain() = default;

int Chain::GroupSize(int group) const { return begins_[group + 1] - begins_[group]; }
int Chain::Owner(uint32_t chunk, int group) const {
  return begins_[group] + static_cast<int>(chunk % GroupSize(group));
}
int Chain::GroupOf(int rank) const {
  return static_cast<int>(std::upper_bound(begins_.begin(), begins_.end(), rank) - begins_.begin()) - 1;
}

absl::Status Chain::Poll() {
  if (std::optional<Links::Notice> notice = links_.PollNotice()) {
    if (notice->status.ok()) {
      left_.push_back(notice->rank);
    } else {
      told_ = told_ || group_.failure().ok();  // whoever failed first has told everybody
      (void)group_.Fail(notice->rank, notice->status);
    }
  }
  absl::Status failure = group_.failure();
  if (!failure.ok() && !told_) {
    told_ = true;
    links_.SendNotice({.rank = group_.culprit(), .status = failure});
  }
  return failure;
}

void Chain::Leave(bool last_of_group) {
  const bool failed = !Poll().ok();
  if (!failed && last_of_group) links_.SendNotice({.rank = group_.first_rank(), .status = absl::OkStatus()});
  const absl::Time end = absl::Now() + (failed ? kFlush : absl::ZeroDuration());
  do {
    (void)links_.PollNotice();  // lets the transport make progress
    if (failed) absl::SleepFor(absl::Milliseconds(5));
  } while (absl::Now() < end);
}

absl::Status Chain::Pump(absl::FunctionRef<absl::StatusOr<bool>()> step, absl::FunctionRef<bool()> done,
                         absl::FunctionRef<std::vector<int>()> missing, const std::string& what) {
  // A late rank's own group knows best: let it report first.
  const absl::Duration grace = std::min(kMaxGrace, group_.timeout());
  int idle = 0;
  absl::Duration nap = kShortestNap;  // grows, or many ranks on few cores would only wake up and look
  absl::Time last_progress = absl::Now();
  while (!done()) {
    absl::StatusOr<bool> progress = step();
    if (!progress.ok()) return group_.Fail(group_.world_rank(), progress.status());
    if (*progress) {
      idle = 0;
      continue;
    }
    if (++idle == 1) {
      last_progress = absl::Now();
      nap = kShortestNap;
    }
    if (idle < kLooksBeforeNap && !group_.crowded()) continue;
    RETURN_IF_ERROR(Poll());
    RETURN_IF_ERROR(group_.CheckAlive(what));
    const absl::Duration waited = absl::Now() - last_progress;
    absl::SleepFor(nap);
    nap = std::min(nap * 2, kLongestNap);
    if (waited < grace) continue;
    const std::vector<int> late = missing();
    for (int rank : late) {
      const int first = begins_[GroupOf(rank)];
      if (std::find(left_.begin(), left_.end(), first) == left_.end()) continue;
      return group_.Fail(rank, ErrorStream(absl::StatusCode::kUnavailable)
                                   << group_.Name(rank) << " has left (its communicator is destroyed) while "
                                   << group_.Name(group_.world_rank()) << " waits in " << what);
    }
    if (waited >= group_.timeout() + grace) {
      std::string names;
      for (int rank : late) names += (names.empty() ? "" : ", ") + group_.Name(rank);
      return group_.Fail(late.empty() ? group_.world_rank() : late[0],
                         ErrorStream(absl::StatusCode::kDeadlineExceeded)
                             << group_.Name(group_.world_rank()) << " waited " << absl::FormatDuration(group_.timeout())
                             << " in " << what << " for data from " << names << ": nothing came");
    }
  }
  return absl::OkStatus();
}

absl::Status Chain::ExchangeWith(const std::vector<int>& send_to, const std::vector<int>& receive_from, int tag,
                                 const void* mine, std::vector<std::vector<std::byte>>* theirs,
                                 const std::string& what) {
  auto message = std::make_unique<std::vector<std::byte>>(sizeof(Header));
  std::memcpy(message->data(), mine, sizeof(Header));
  std::vector<std::unique_ptr<LinkRequest>> requests;
  theirs->assign(receive_from.size(), std::vector<std::byte>(sizeof(Header)));
  for (size_t i = 0; i < receive_from.size(); ++i) {
    ASSIGN_OR_RETURN(auto request, links_.Receive(receive_from[i], tag, (*theirs)[i].data(), sizeof(Header)));
    requests.push_back(std::move(request));
  }
  for (int rank : send_to) {
    ASSIGN_OR_RETURN(auto request, links_.Send(rank, tag, message->data(), message->size()));
    requests.push_back(std::move(request));
  }
  auto step = [&]() -> absl::StatusOr<bool> {
    bool progress = false;
    for (std::unique_ptr<LinkRequest>& request : requests) {
      if (request == nullptr) continue;
      ASSIGN_OR_RETURN(const bool complete, request->Test());
      if (complete) request.reset();
      progress = progress || complete;
    }
    return progress;
  };
  auto done = [&] {
    return std::all_of(requests.begin(), requests.end(), [](auto& request) { return request == nullptr; });
  };
  absl::Status status = Pump(step, done, [&] { return receive_from; }, what);
  if (!status.ok()) kept_.push_back(std::move(message));
  return status;
}

absl::Status Chain::AwaitNeighbours(uint64_t sequence, const OpDescription& description, const std::string& label) {
  const std::string what = Describe(description, label);
  Slot& slot = group_.slot(sequence);
  if (group_.index() != 0) {
    return group_.Await([&] { return slot.linked.Get(sequence) == 1; }, [] { return std::vector<int>(); }, what);
  }
  const int groups = static_cast<int>(begins_.size()) - 1;
  std::vector<int> neighbours;
  if (here_ > 0) neighbours.push_back(begins_[here_ - 1]);
  if (here_ + 1 < groups) neighbours.push_back(begins_[here_ + 1]);
  Header mine{.sequence = sequence, .description = description};
  CopyText(label, mine.label, kLabelBytes);
  std::vector<std::vector<std::byte>> theirs;
  RETURN_IF_ERROR(ExchangeWith(neighbours, neighbours, kHeaderTag, &mine, &theirs, what));
  for (size_t i = 0; i < theirs.size(); ++i) {
    Header other;
    std::memcpy(&other, theirs[i].data(), sizeof(other));
    if (other.sequence == sequence && other.description == description && std::strcmp(other.label, mine.label) == 0)
      continue;
    return group_.Fail(neighbours[i], group_.Disagreement(sequence, group_.first_rank(), description, mine.label,
                                                          neighbours[i], other.description, other.label));
  }
  if (description.opcode == Opcode::kBarrier || description.opcode == Opcode::kAllocate) {
    const std::vector<int> below(neighbours.begin(), neighbours.begin() + (here_ > 0 ? 1 : 0));
    const std::vector<int> above(neighbours.begin() + below.size(), neighbours.end());
    RETURN_IF_ERROR(ExchangeWith({}, below, kTokenTag, &mine, &theirs, what));     // all below are there
    RETURN_IF_ERROR(ExchangeWith(above, above, kTokenTag, &mine, &theirs, what));  // all above are
    RETURN_IF_ERROR(ExchangeWith(below, {}, kTokenTag, &mine, &theirs, what));
  }
  slot.linked.IncrementBelow(sequence, 1);
  group_.Notify();
  return absl::OkStatus();
}

absl::Status Chain::Run(uint64_t sequence, const Operands& operands, const Chunks& chunks, const std::string& label) {
  std::vector<std::unique_ptr<Car>> cars;
  uint32_t next = static_cast<uint32_t>(group_.index());
  const std::string what = Describe(operands.description, label);
  auto step = [&]() -> absl::StatusOr<bool> {
    bool progress = false;
    while (cars.size() < kCarsInFlight && next < chunks.size()) {
      cars.push_back(std::make_unique<Car>());
      cars.back()->index = next;
      cars.back()->chunk = chunks.at(next);
      next += group_.size();
      RETURN_IF_ERROR(Begin(*cars.back(), operands));
      progress = true;
    }
    for (std::unique_ptr<Car>& car : cars) {
      ASSIGN_OR_RETURN(const bool moved, Step(*car, operands));
      progress = progress || moved;
      if (!car->done) continue;
      car.reset();
      if (group_.slot(sequence).finished.IncrementBelow(sequence, chunks.size()) + 1 == chunks.size()) group_.Notify();
    }
    std::erase(cars, nullptr);
    return progress;
  };
  auto missing = [&] {
    std::vector<int> ranks;
    for (const std::unique_ptr<Car>& car : cars) {
      const int rank = car->receives_from;
      if (rank >= 0 && std::find(ranks.begin(), ranks.end(), rank) == ranks.end()) ranks.push_back(rank);
    }
    return ranks;
  };
  absl::Status status = Pump(step, [&] { return cars.empty() && next >= chunks.size(); }, missing, what);
  for (std::unique_ptr<Car>& car : cars) {
    if (car == nullptr) continue;
    car->prefix_receive.reset();
    car->result_receive.reset();
    wrecks_.push_back(std::move(car));
  }
  return status;
}

absl::Status Chain::Begin(Car& car, const Operands& o) {
  const int groups = static_cast<int>(begins_.size()) - 1;
  const DType dtype = static_cast<DType>(o.description.dtype);
  car.result.resize(car.chunk.count * SizeOf(dtype));
  if (!IsReduction(o.description)) {
    car.source = GroupOf(SourceRank(o.description, car.chunk));
    car.last_up = groups - 1;
    car.last_down = 0;
    if (here_ == car.source) {
      if (!group_.BeginWork()) return group_.failure();
      std::memcpy(car.result.data(), SourceAddress(o, car.chunk), car.result.size());
      group_.EndWork();
      return HaveResult(car, o);
    }
  } else {
    car.source = car.last_up = groups - 1;
    car.last_down = o.description.opcode == Opcode::kReduceScatter ? GroupOf(car.chunk.share) : 0;
    car.partial.resize(car.chunk.count * AccumulatorSize(dtype, static_cast<ReduceKind>(o.description.kind)));
    if (here_ == 0) RETURN_IF_ERROR(HavePrefix(car, o));
    else {
      car.receives_from = Owner(car.index, here_ - 1);
      ASSIGN_OR_RETURN(car.prefix_receive, links_.Receive(car.receives_from, ChunkTag(car.index, kUpTag),
                                                          car.partial.data(), car.partial.size()));
    }
  }
  if (here_ != car.source && here_ >= car.last_down && here_ <= car.last_up) {
    const int from = here_ < car.source ? here_ + 1 : here_ - 1;
    car.receives_from = Owner(car.index, from);
    ASSIGN_OR_RETURN(car.result_receive, links_.Receive(car.receives_from, ChunkTag(car.index, kDownTag),
                                                        car.result.data(), car.result.size()));
  }
  return absl::OkStatus();
}

absl::StatusOr<bool> Chain::Step(Car& car, const Operands& operands) {
  bool progress = false;
  if (car.prefix_receive != nullptr) {
    ASSIGN_OR_RETURN(const bool here, car.prefix_receive->Test());
    if (!here) return false;
    car.prefix_receive.reset();
    RETURN_IF_ERROR(HavePrefix(car, operands));
    progress = true;
  }
  if (car.result_receive != nullptr) {
    ASSIGN_OR_RETURN(const bool here, car.result_receive->Test());
    if (!here) return progress;
    car.result_receive.reset();
    RETURN_IF_ERROR(HaveResult(car, operands));
    progress = true;
  }
  for (std::unique_ptr<LinkRequest>& send : car.sends) {
    ASSIGN_OR_RETURN(const bool gone, send->Test());
    if (gone) send.reset();
  }
  std::erase(car.sends, nullptr);
  car.done = car.sends.empty();
  return progress || car.done;
}

// The partial result of the groups below is in car.partial (unless there are none): adds this group's ranks.
absl::Status Chain::HavePrefix(Car& car, const Operands& o) {
  const bool last = here_ == car.source;
  std::vector<const std::byte*> inputs;
  std::vector<std::byte*> outputs;
  ChunkInputs(o, car.chunk, &inputs);
  ChunkOutputs(o, car.chunk, &outputs);
  outputs.push_back(car.result.data());
  if (!group_.BeginWork()) return group_.failure();
  Reduce({.kind = static_cast<ReduceKind>(o.description.kind),
          .dtype = static_cast<DType>(o.description.dtype),
          .count = car.chunk.count,
          .world_size = o.world_size,
          .inputs = inputs,
          .outputs = outputs,
          .prefix = here_ == 0 ? nullptr : car.partial.data(),
          .partial = last ? nullptr : car.partial.data()});
  group_.EndWork();
  if (last) return SendResult(car);
  ASSIGN_OR_RETURN(auto send, links_.Send(Owner(car.index, here_ + 1), ChunkTag(car.index, kUpTag), car.partial.data(),
                                          car.partial.size()));
  car.sends.push_back(std::move(send));
  return absl::OkStatus();
}

absl::Status Chain::HaveResult(Car& car, const Operands& o) {
  std::vector<std::byte*> outputs;
  ChunkOutputs(o, car.chunk, &outputs);
  if (!group_.BeginWork()) return group_.failure();
  CopyToAll(car.result.data(), outputs, car.result.size());
  group_.EndWork();
  return SendResult(car);
}

absl::Status Chain::SendResult(Car& car) {
  auto send_to = [&](int group) -> absl::Status {
    ASSIGN_OR_RETURN(auto send, links_.Send(Owner(car.index, group), ChunkTag(car.index, kDownTag), car.result.data(),
                                            car.result.size()));
    car.sends.push_back(std::move(send));
    return absl::OkStatus();
  };
  if (here_ <= car.source && here_ > car.last_down) RETURN_IF_ERROR(send_to(here_ - 1));
  if (here_ >= car.source && here_ < car.last_up) RETURN_IF_ERROR(send_to(here_ + 1));
  return absl::OkStatus();
}

}  // namespace lockstep
