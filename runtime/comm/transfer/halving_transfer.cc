#include "runtime/comm/transfer/halving_transfer.h"

#include <cstring>

#include "core/status.h"

namespace lockstep {

// Of the first 2 (groups - p) groups, the odd ones also take part for the even ones before them.
void HalvingTransfer::PlanRounds() {
  const int groups = context_.group_notices.groups();
  power_ = PowerOfTwoBelow(groups);
  const int pairs = groups - power_;
  const Range all{0, chunk_.count};
  if (here_ < 2 * pairs && here_ % 2 == 0) {
    rounds_.push_back({.with = here_ + 1, .stage = Stage::kPartial, .send = all});
    rounds_.push_back({.with = here_ + 1, .stage = Stage::kResult, .receive = all});
    return;
  }
  const bool stands_in = here_ < 2 * pairs;
  if (stands_in) rounds_.push_back({.with = here_ - 1, .stage = Stage::kPartial, .receive = all});
  PlanSwaps(stands_in ? here_ / 2 : here_ - pairs, pairs);
  if (stands_in) rounds_.push_back({.with = here_ - 1, .stage = Stage::kResult, .send = all});
}

// `place` is this group's index among those that take part. The first `pairs` of them represent another group.
void HalvingTransfer::PlanSwaps(int place, int pairs) {
  const auto group_at = [&](int p) { return p < pairs ? 2 * p + 1 : p + pairs; };
  own_ = PartsOf(place, place + 1);
  std::vector<Round> results;  // in reverse order
  for (int distance = power_ / 2; distance > 0; distance /= 2) {
    const int other = place ^ distance, with = group_at(other);
    const int mine = place / distance * distance,
              theirs = other / distance * distance;  // the first parts that are left
    const Range keep = PartsOf(mine, mine + distance), give = PartsOf(theirs, theirs + distance);
    rounds_.push_back({.with = with, .stage = Stage::kPartial, .send = give, .receive = keep});
    results.push_back({.with = with, .stage = Stage::kResult, .send = keep, .receive = give});
  }
  for (auto round = results.rbegin(); round != results.rend(); ++round) rounds_.push_back(std::move(*round));
}

HalvingTransfer::Range HalvingTransfer::PartsOf(int begin, int end) const {
  return {chunk_.count * begin / power_, chunk_.count * end / power_};
}

absl::Status HalvingTransfer::Begin() {
  PlanRounds();
  partial_ = std::make_shared<MessageBytes>(partial_bytes());
  result_ = std::make_shared<MessageBytes>(result_bytes());
  const size_t partial_width = partial_bytes() / static_cast<size_t>(chunk_.count);
  for (Round& round : rounds_) {
    if (round.receive.count() == 0) continue;
    const size_t width = round.stage == Stage::kPartial ? partial_width : SizeOf(dtype());
    round.incoming = std::make_shared<MessageBytes>(static_cast<size_t>(round.receive.count()) * width);
    ASSIGN_OR_RETURN(round.request, Receive(round.with, round.stage, round.incoming));
  }
  RETURN_IF_ERROR(ReduceGroup());
  return Advance().status();
}

absl::Status HalvingTransfer::ReduceGroup() {
  std::vector<const std::byte*> inputs;
  ChunkInputs(context_.operands, chunk_, &inputs);
  RETURN_IF_ERROR(context_.group.BeginWork());
  Reduce({.kind = kind(),
          .dtype = dtype(),
          .count = chunk_.count,
          .world_size = context_.operands.world_size,
          .inputs = inputs,
          .partial = partial_->data()});
  context_.group.EndWork();
  return absl::OkStatus();
}

absl::StatusOr<bool> HalvingTransfer::Step() {
  ASSIGN_OR_RETURN(bool progress, Advance());
  if (round_ < rounds_.size()) return progress;
  ASSIGN_OR_RETURN(done_, AllSent());
  return progress || done_;
}

absl::StatusOr<bool> HalvingTransfer::Advance() {
  bool progress = false;
  while (round_ < rounds_.size()) {
    Round& round = rounds_[round_];
    if (!has_begun_) {
      if (round.stage == Stage::kResult && !has_result_) RETURN_IF_ERROR(FinishOwnPart());
      RETURN_IF_ERROR(SendOf(round));
      has_begun_ = true;
    }
    if (round.request != nullptr) {
      ASSIGN_OR_RETURN(const bool here, round.request->Test());
      if (!here) return progress;
      round.request.reset();
      RETURN_IF_ERROR(Take(round));
      round.incoming.reset();
    }
    ++round_;
    has_begun_ = false;
    progress = true;
  }
  if (progress) RETURN_IF_ERROR(CopyToOutputs(result_->data()));
  return progress;
}

absl::Status HalvingTransfer::SendOf(const Round& round) {
  if (round.send.count() == 0) return absl::OkStatus();
  const MessageBytes& from = round.stage == Stage::kPartial ? *partial_ : *result_;
  const size_t width = from.size() / static_cast<size_t>(chunk_.count);
  auto message = std::make_shared<MessageBytes>(static_cast<size_t>(round.send.count()) * width);
  std::memcpy(message->data(), from.data() + static_cast<size_t>(round.send.begin) * width, message->size());
  return Send(round.with, round.stage, std::move(message));
}

// Adds received partial results, the lower group's first, or keeps received results.
absl::Status HalvingTransfer::Take(const Round& round) {
  MessageBytes& to = round.stage == Stage::kPartial ? *partial_ : *result_;
  const size_t width = to.size() / static_cast<size_t>(chunk_.count);
  std::byte* const at = to.data() + static_cast<size_t>(round.receive.begin) * width;
  if (round.stage == Stage::kResult) {
    std::memcpy(at, round.incoming->data(), round.incoming->size());
    return absl::OkStatus();
  }
  const std::byte* const mine = at;
  const std::byte* const theirs = round.incoming->data();
  const std::byte* const partials[] = {round.with < here_ ? theirs : mine, round.with < here_ ? mine : theirs};
  Reduce({.kind = kind(),
          .dtype = dtype(),
          .count = round.receive.count(),
          .world_size = context_.operands.world_size,
          .partial = at,
          .partials = partials});
  return absl::OkStatus();
}

absl::Status HalvingTransfer::FinishOwnPart() {
  has_result_ = true;
  if (own_.count() == 0) return absl::OkStatus();
  const std::byte* const sum = partial_->data() + static_cast<size_t>(own_.begin) * (partial_->size() / chunk_.count);
  std::byte* const result = result_->data() + static_cast<size_t>(own_.begin) * SizeOf(dtype());
  Reduce({.kind = kind(),
          .dtype = dtype(),
          .count = own_.count(),
          .world_size = context_.operands.world_size,
          .outputs = {&result, 1},
          .partials = {&sum, 1}});
  return absl::OkStatus();
}

std::vector<int> HalvingTransfer::Missing() const {
  if (round_ < rounds_.size() && rounds_[round_].request != nullptr) return {Carrier(rounds_[round_].with)};
  return UnfinishedReceivers();
}

}  // namespace lockstep
