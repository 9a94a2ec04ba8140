#include "runtime/comm/transfer/between_groups.h"

#include <algorithm>
#include <cstring>
#include <type_traits>
#include <utility>

#include "absl/time/clock.h"
#include "core/status.h"
#include "runtime/comm/collective/description.h"
#include "runtime/comm/transfer/transfer.h"
#include "runtime/process/clock.h"

namespace lockstep {
namespace {

constexpr size_t kChunksInFlight = 8, kHalvingChunksInFlight = 4;  // chunks of halving are large
constexpr int kHeaderTag = 2 * kChunkTags;
constexpr int kTokenTag = 2 * kChunkTags + 1;
constexpr absl::Duration kNap = absl::Milliseconds(5);  // between checks for failures
constexpr int kLooksBeforeNap = 200;

// The values that neighbouring groups compare.
struct Header {
  uint64_t sequence = 0;
  OpDescription description;
  char label[kLabelBytes] = {};
};
static_assert(std::is_trivially_copyable_v<Header>);

RouteOptions OptionsOf(const GroupNotices& group_notices, bool in_rank_order, const RoutePolicy& policy) {
  RouteOptions options{.groups = group_notices.groups(), .in_rank_order = in_rank_order, .policy = policy};
  for (int g = 0; g < group_notices.groups(); ++g)
    options.largest_group = std::max(options.largest_group, group_notices.GroupSize(g));
  return options;
}

// The exchange and comparison of headers between the first ranks of groups, for one collective.
class Headers {
 public:
  // `others`: the first ranks of the groups with which this one compares.
  Headers(Group& group, std::vector<int> others, uint64_t sequence, const OpDescription& description,
          const std::string& label)
      : group_(group), others_(std::move(others)), message_(std::make_shared<MessageBytes>(sizeof(Header))) {
    mine_ = {.sequence = sequence, .description = description};
    CopyText(label, mine_.label, kLabelBytes);
    std::memcpy(message_->data(), &mine_, sizeof(Header));
  }

  const std::vector<int>& others() const { return others_; }
  const MessageBuffer& message() const { return message_; }
  bool done() const { return done_; }
  std::vector<int> Missing() const { return exchange_.Missing(); }

  absl::Status Begin(Links& links) {
    ASSIGN_OR_RETURN(exchange_, Exchange::Begin(links, others_, others_, kHeaderTag, message_));
    return absl::OkStatus();
  }

  // Returns true if there was progress. Fails if another group makes another call.
  absl::StatusOr<bool> Step() {
    if (done_) return false;
    ASSIGN_OR_RETURN(const bool progress, exchange_.Step());
    if (!exchange_.done()) return progress;
    for (size_t i = 0; i < others_.size(); ++i) RETURN_IF_ERROR(Compare(others_[i], *exchange_.received()[i]));
    return done_ = true;
  }

 private:
  absl::Status Compare(int rank, const MessageBytes& message) const {
    Header theirs;
    std::memcpy(&theirs, message.data(), sizeof(theirs));
    if (theirs.sequence == mine_.sequence && theirs.description == mine_.description &&
        std::strcmp(theirs.label, mine_.label) == 0)
      return absl::OkStatus();
    return group_.Fail(rank, group_.Disagreement(mine_.sequence, group_.first_rank(), mine_.description, mine_.label,
                                                 rank, theirs.description, theirs.label));
  }

  Group& group_;
  const std::vector<int> others_;
  Header mine_;
  const MessageBuffer message_;
  Exchange exchange_;
  bool done_ = false;
};

// The chunks of a collective that this rank carries.
class ChunkTransfers {
 public:
  ChunkTransfers(const Transfer::Context& context, Route route, const Chunks& chunks, uint64_t sequence)
      : context_(context),
        route_(route),
        chunks_(chunks),
        sequence_(sequence),
        most_(route == Route::kHalving
                  ? kHalvingChunksInFlight
                  : std::max<size_t>(kChunksInFlight,
                                     2 * context.group_notices.groups())),  // so that each owner has some
        next_(static_cast<uint32_t>(context.group.index())) {}

  bool done() const { return transfers_.empty() && next_ >= chunks_.size(); }

  // Starts chunks, and continues those in progress. Returns true if there was progress.
  absl::StatusOr<bool> Step() {
    bool progress = false;
    Group& group = context_.group;
    while (transfers_.size() < most_ && next_ < chunks_.size()) {
      transfers_.push_back(Transfer::Create(route_, context_, next_, chunks_.at(next_)));
      next_ += group.size();
      RETURN_IF_ERROR(transfers_.back()->Begin());
      progress = true;
    }
    for (const std::unique_ptr<Transfer>& transfer : transfers_) {
      ASSIGN_OR_RETURN(const bool moved, transfer->Step());
      progress = progress || moved;
      if (!transfer->done()) continue;
      if (group.slot(sequence_).finished.IncrementBelow(sequence_, chunks_.size()) + 1 == chunks_.size())
        group.Notify();
    }
    std::erase_if(transfers_, [](const std::unique_ptr<Transfer>& transfer) { return transfer->done(); });
    return progress;
  }

  // Adds the ranks for which it waits.
  void AddMissing(std::vector<int>* ranks) const {
    for (const std::unique_ptr<Transfer>& transfer : transfers_) {
      for (int rank : transfer->Missing()) {
        if (std::find(ranks->begin(), ranks->end(), rank) == ranks->end()) ranks->push_back(rank);
      }
    }
  }

 private:
  const Transfer::Context context_;
  const Route route_;
  const Chunks& chunks_;
  const uint64_t sequence_;
  const size_t most_;
  uint32_t next_;
  std::vector<std::unique_ptr<Transfer>> transfers_;
};

}  // namespace

BetweenGroups::BetweenGroups(Group* group, Links* links, bool in_rank_order, const RoutePolicy& policy)
    : group_(*group),
      links_(*links),
      group_notices_(group, links),
      here_(group_notices_.GroupOf(group->world_rank())),
      options_(OptionsOf(group_notices_, in_rank_order, policy)) {
  group_.OnIdle([this] { (void)Poll(); }, [this](int rank, bool first) { return group_notices_.Ask(rank, first); });
}

absl::Status BetweenGroups::Pump(absl::FunctionRef<absl::StatusOr<bool>()> step, absl::FunctionRef<bool()> done,
                                 absl::FunctionRef<std::vector<int>()> missing, const std::string& what) {
  int idle = 0;
  absl::Duration last_progress = SteadyNow();
  std::optional<BlameSearch> search;
  const auto advance = [&]() -> absl::StatusOr<bool> {
    absl::StatusOr<bool> progress = step();
    if (!progress.ok()) return group_.Fail(group_.world_rank(), progress.status());
    if (!*progress) return false;
    idle = 0;
    search.reset();
    links_.Progress(absl::ZeroDuration());
    return true;
  };
  while (!done()) {
    ASSIGN_OR_RETURN(const bool advanced, advance());
    if (advanced) continue;
    if (++idle == 1) last_progress = SteadyNow();
    if (idle < kLooksBeforeNap && !group_.crowded()) {
      links_.Progress(absl::ZeroDuration());
      continue;
    }
    const std::vector<int> late = missing();
    group_.AnnounceWaiting(late.empty() ? -1 : late[0]);
    RETURN_IF_ERROR(Poll());
    RETURN_IF_ERROR(group_.CheckAlive(what));
    // A rank that has left may have sent all that this one waits for, just before the notice of its leaving.
    ASSIGN_OR_RETURN(const bool arrived, advance());
    if (arrived) continue;
    RETURN_IF_ERROR(WaitedFor(late, SteadyNow() - last_progress, &search, what));
    links_.Progress(kNap);
  }
  return absl::OkStatus();
}

absl::Status BetweenGroups::WaitedFor(const std::vector<int>& late, absl::Duration waited,
                                      std::optional<BlameSearch>* search, const std::string& what) {
  group_.CheckStall(waited, what);
  // A late rank's own group has the best information, so it gets time to report first.
  if (waited < group_.grace()) return absl::OkStatus();
  for (int rank : late) {
    if (const absl::Status lost = links_.Lost(rank); !group_notices_.HasLeft(rank) && !lost.ok()) {
      return group_.Fail(rank, ErrorStream(absl::StatusCode::kUnavailable)
                                   << group_.Name(rank) << ": " << lost.message() << ", while "
                                   << group_.Name(group_.world_rank()) << " waits in " << what);
    }
    if (!group_notices_.HasLeft(rank)) continue;
    return group_.Fail(rank, ErrorStream(absl::StatusCode::kUnavailable)
                                 << group_.Name(rank) << " has left (its communicator is destroyed) while "
                                 << group_.Name(group_.world_rank()) << " waits in " << what);
  }
  if (waited < group_.timeout()) return absl::OkStatus();
  if (!search->has_value()) {
    search->emplace(group_.world_rank(), late, group_.grace(),
                    [this](int rank, bool first) { return group_.Ask(rank, first); });
  }
  const std::optional<std::vector<BlameSearch::Culprit>> culprits = (*search)->Poll();
  return culprits.has_value() ? group_.TimedOut(*culprits, what) : absl::OkStatus();
}

std::vector<int> BetweenGroups::FirstRanks(Route route) const {
  std::vector<int> ranks;
  for (const int peer : PeerGroups(route, here_, group_notices_.groups()))
    ranks.push_back(group_notices_.begins()[peer]);
  return ranks;
}

BetweenGroups::Plan BetweenGroups::PlanOf(const Collective& collective) const {
  const int world_size = group_notices_.begins().back();
  const Route route = RouteOf(collective, world_size, options_);
  const uint64_t bytes = std::max(InputBytes(collective, world_size), OutputBytes(collective, world_size));
  const ChunkLimits limits = ChunkLimitsOf(route, bytes, options_.groups, options_.largest_group);
  return {route, Chunks(collective, world_size, 2 * world_size, limits.most, limits.least)};
}

absl::Status BetweenGroups::Run(uint64_t sequence, const OpDescription& description, const Operands& operands,
                                const Plan& plan, const std::string& label, absl::FunctionRef<void()> on_met) {
  const std::string what = Describe(description, label);
  const bool compares = group_.index() == 0;
  Slot& slot = group_.slot(sequence);
  Headers headers(group_, FirstRanks(plan.route), sequence, description, label);
  ChunkTransfers transfers({.group = group_, .links = links_, .group_notices = group_notices_, .operands = operands},
                           plan.route, plan.chunks, sequence);
  if (compares) RETURN_IF_ERROR(headers.Begin(links_));
  // Received data of an unexpected size. The headers will explain it, here or at the group's first rank.
  absl::Status mismatch;
  bool met = false;
  auto look_who_came = [&] {
    if (met || (compares ? !headers.done() : slot.met.Get(sequence) == 0)) return;
    met = true;
    slot.met.IncrementBelow(sequence, 1);
    on_met();
  };
  auto step = [&]() -> absl::StatusOr<bool> {
    bool progress = false;
    if (compares) {
      ASSIGN_OR_RETURN(progress, headers.Step());
    }
    look_who_came();
    if (!mismatch.ok()) return progress;
    const absl::StatusOr<bool> moved = transfers.Step();
    if (absl::IsOutOfRange(moved.status())) {
      mismatch = moved.status();
      return true;
    }
    RETURN_IF_ERROR(moved.status());
    return progress || *moved;
  };
  auto done = [&] {
    if (compares && !headers.done()) return false;
    return mismatch.ok() ? transfers.done() : compares || slot.linked.Get(sequence) == 1;
  };
  auto missing = [&] {
    std::vector<int> ranks;
    if (compares) ranks = headers.Missing();
    if (mismatch.ok()) transfers.AddMissing(&ranks);
    return ranks;
  };
  absl::Status status = Pump(step, done, missing, what);
  group_.AnnounceRunning();
  RETURN_IF_ERROR(status);
  if (!mismatch.ok()) return group_.Fail(group_.world_rank(), mismatch);
  if (!met) on_met();  // the data arrived before the group's first rank noticed the headers
  if (!compares) return absl::OkStatus();
  // Data from all groups shows that they have arrived and found no difference.
  const bool moves_data = plan.chunks.size() > 0;
  if (plan.route == Route::kChain && !moves_data) RETURN_IF_ERROR(PassTokens(headers.message(), what));
  slot.linked.IncrementBelow(sequence, 1);
  group_.Notify();
  return absl::OkStatus();
}

absl::Status BetweenGroups::PassTokens(const MessageBuffer& mine, const std::string& what) {
  std::vector<int> below = FirstRanks(Route::kChain), above;
  if (here_ == 0 || below.size() > 1) {
    above = {below.back()};
    below.pop_back();
  }
  RETURN_IF_ERROR(ExchangeTokens({}, below, mine, what));     // all groups below have arrived
  RETURN_IF_ERROR(ExchangeTokens(above, above, mine, what));  // all groups above have arrived
  return ExchangeTokens(below, {}, mine, what);
}

absl::Status BetweenGroups::ExchangeTokens(const std::vector<int>& send_to, const std::vector<int>& receive_from,
                                           const MessageBuffer& mine, const std::string& what) {
  ASSIGN_OR_RETURN(Exchange exchange, Exchange::Begin(links_, send_to, receive_from, kTokenTag, mine));
  absl::Status status =
      Pump([&] { return exchange.Step(); }, [&] { return exchange.done(); }, [&] { return exchange.Missing(); }, what);
  group_.AnnounceRunning();
  return status;
}

}  // namespace lockstep
