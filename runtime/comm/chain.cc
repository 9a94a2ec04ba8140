#include "runtime/comm/chain.h"

#include <algorithm>
#include <cstring>
#include <type_traits>
#include <utility>

#include "absl/time/clock.h"
#include "core/status.h"
#include "runtime/comm/clock.h"
#include "runtime/comm/describe.h"
#include "runtime/comm/transfer.h"

namespace lockstep {
namespace {

constexpr size_t kChunksInFlight = 8;
constexpr int kHeaderTag = 2 * kChunkTags;
constexpr int kTokenTag = 2 * kChunkTags + 1;
constexpr absl::Duration kNap = absl::Milliseconds(5);  // between looks at failures
constexpr int kLooksBeforeNap = 200;

// What neighbouring groups compare.
struct Header {
  uint64_t sequence = 0;
  OpDescription description;
  char label[kLabelBytes] = {};
};
static_assert(std::is_trivially_copyable_v<Header>);

}  // namespace

namespace {

RouteOptions OptionsOf(const Notices& notices, bool in_rank_order) {
  RouteOptions options{.groups = notices.groups(), .in_rank_order = in_rank_order};
  for (int g = 0; g < notices.groups(); ++g)
    options.largest_group = std::max(options.largest_group, notices.GroupSize(g));
  return options;
}

}  // namespace

Chain::Chain(Group* group, Links* links, bool in_rank_order)
    : group_(*group),
      links_(*links),
      notices_(group, links),
      here_(notices_.GroupOf(group->world_rank())),
      options_(OptionsOf(notices_, in_rank_order)) {
  group_.OnIdle([this] { (void)Poll(); }, [this](int rank, bool first) { return notices_.Ask(rank, first); });
}

absl::Status Chain::Pump(absl::FunctionRef<absl::StatusOr<bool>()> step, absl::FunctionRef<bool()> done,
                         absl::FunctionRef<std::vector<int>()> missing, const std::string& what) {
  int idle = 0;
  absl::Duration last_progress = SteadyNow();
  std::optional<Search> search;
  while (!done()) {
    absl::StatusOr<bool> progress = step();
    if (!progress.ok()) return group_.Fail(group_.world_rank(), progress.status());
    if (*progress) {
      idle = 0;
      search.reset();
      links_.Progress(absl::ZeroDuration());
      continue;
    }
    if (++idle == 1) last_progress = SteadyNow();
    if (idle < kLooksBeforeNap && !group_.crowded()) {
      links_.Progress(absl::ZeroDuration());
      continue;
    }
    const std::vector<int> late = missing();
    group_.SayWaiting(late.empty() ? -1 : late[0]);
    RETURN_IF_ERROR(Poll());
    RETURN_IF_ERROR(group_.CheckAlive(what));
    RETURN_IF_ERROR(WaitedFor(late, SteadyNow() - last_progress, &search, what));
    links_.Progress(kNap);
  }
  return absl::OkStatus();
}

absl::Status Chain::WaitedFor(const std::vector<int>& late, absl::Duration waited, std::optional<Search>* search,
                              const std::string& what) {
  // A late rank's own group knows best: let it report first.
  if (waited < group_.grace()) return absl::OkStatus();
  for (int rank : late) {
    if (const absl::Status lost = links_.Lost(rank); !notices_.HasLeft(rank) && !lost.ok()) {
      return group_.Fail(rank, ErrorStream(absl::StatusCode::kUnavailable)
                                   << group_.Name(rank) << ": " << lost.message() << ", while "
                                   << group_.Name(group_.world_rank()) << " waits in " << what);
    }
    if (!notices_.HasLeft(rank)) continue;
    return group_.Fail(rank, ErrorStream(absl::StatusCode::kUnavailable)
                                 << group_.Name(rank) << " has left (its communicator is destroyed) while "
                                 << group_.Name(group_.world_rank()) << " waits in " << what);
  }
  if (waited < group_.timeout()) return absl::OkStatus();
  if (!search->has_value()) {
    search->emplace(group_.world_rank(), late, group_.grace(),
                    [this](int rank, bool first) { return group_.Ask(rank, first); });
  }
  const std::optional<std::vector<Search::Culprit>> culprits = (*search)->Poll();
  return culprits.has_value() ? group_.TimedOut(*culprits, what) : absl::OkStatus();
}

absl::Status Chain::ExchangeWith(const std::vector<int>& send_to, const std::vector<int>& receive_from, int tag,
                                 const MessageBuffer& mine, std::vector<MessageBuffer>* theirs,
                                 const std::string& what) {
  struct Exchange {
    int with;
    std::unique_ptr<LinkRequest> request;
  };
  std::vector<Exchange> exchanges;
  theirs->clear();
  for (int rank : receive_from) {
    theirs->push_back(std::make_shared<std::vector<std::byte>>(sizeof(Header)));
    ASSIGN_OR_RETURN(auto request, links_.Receive(rank, tag, theirs->back()));
    exchanges.push_back({rank, std::move(request)});
  }
  for (int rank : send_to) {
    ASSIGN_OR_RETURN(auto request, links_.Send(rank, tag, mine));
    exchanges.push_back({rank, std::move(request)});
  }
  auto step = [&]() -> absl::StatusOr<bool> {
    bool progress = false;
    for (Exchange& exchange : exchanges) {
      ASSIGN_OR_RETURN(const bool complete, exchange.request->Test());
      if (complete) exchange.request.reset();
      progress = progress || complete;
    }
    std::erase_if(exchanges, [](const Exchange& exchange) { return exchange.request == nullptr; });
    return progress;
  };
  auto missing = [&] {
    std::vector<int> ranks;
    for (const Exchange& exchange : exchanges) {
      if (std::find(ranks.begin(), ranks.end(), exchange.with) == ranks.end()) ranks.push_back(exchange.with);
    }
    return ranks;
  };
  absl::Status status = Pump(step, [&] { return exchanges.empty(); }, missing, what);
  group_.SayGoingOn();
  return status;
}

absl::Status Chain::AwaitGroups(uint64_t sequence, const OpDescription& description, const std::string& label) {
  const std::string what = Describe(description, label);
  Slot& slot = group_.slot(sequence);
  if (group_.index() != 0) {
    return group_.Await([&] { return slot.linked.Get(sequence) == 1; }, [] { return std::vector<int>{0}; }, what);
  }
  const bool in_chain = RouteOf(description, group_.world_size(), options_) == Route::kChain;
  std::vector<int> others;  // the first ranks of groups, in order
  for (int g = 0; g < notices_.groups(); ++g) {
    if (g != here_ && (!in_chain || std::abs(g - here_) == 1)) others.push_back(notices_.begins()[g]);
  }
  Header mine{.sequence = sequence, .description = description};
  CopyText(label, mine.label, kLabelBytes);
  auto message = std::make_shared<std::vector<std::byte>>(sizeof(Header));
  std::memcpy(message->data(), &mine, sizeof(Header));
  std::vector<MessageBuffer> theirs;
  RETURN_IF_ERROR(ExchangeWith(others, others, kHeaderTag, message, &theirs, what));
  for (size_t i = 0; i < theirs.size(); ++i) {
    Header other;
    std::memcpy(&other, theirs[i]->data(), sizeof(other));
    if (other.sequence == sequence && other.description == description && std::strcmp(other.label, mine.label) == 0)
      continue;
    return group_.Fail(others[i], group_.Disagreement(sequence, group_.first_rank(), description, mine.label, others[i],
                                                      other.description, other.label));
  }
  // Data that comes from all groups says that they are there, and have found no difference.
  const bool moves_data =
      TraitsOf(description.opcode).moves_data && description.count > 0 && !description.compared_only;
  if (in_chain && !moves_data) {
    const std::vector<int> below(others.begin(), others.begin() + (here_ > 0 ? 1 : 0));
    const std::vector<int> above(others.begin() + below.size(), others.end());
    RETURN_IF_ERROR(PassTokens(below, above, message, what));
  }
  slot.linked.IncrementBelow(sequence, 1);
  group_.Notify();
  return absl::OkStatus();
}

// Tokens up the chain and down again. `below` and `above` hold the neighbours on each side, one or none.
absl::Status Chain::PassTokens(const std::vector<int>& below, const std::vector<int>& above, const MessageBuffer& mine,
                               const std::string& what) {
  std::vector<MessageBuffer> theirs;
  RETURN_IF_ERROR(ExchangeWith({}, below, kTokenTag, mine, &theirs, what));     // all below are there
  RETURN_IF_ERROR(ExchangeWith(above, above, kTokenTag, mine, &theirs, what));  // all above are
  return ExchangeWith(below, {}, kTokenTag, mine, &theirs, what);
}

absl::Status Chain::Run(uint64_t sequence, const Operands& operands, const Chunks& chunks, const std::string& label) {
  const Transfer::Context context{.group = group_, .links = links_, .notices = notices_, .operands = operands};
  std::vector<std::unique_ptr<Transfer>> transfers;
  uint32_t next = static_cast<uint32_t>(group_.index());
  const Route route = RouteOf(operands.description, operands.world_size, options_);
  const size_t most = std::max<size_t>(kChunksInFlight, 2 * notices_.groups());  // each owner has some
  auto step = [&]() -> absl::StatusOr<bool> {
    bool progress = false;
    while (transfers.size() < most && next < chunks.size()) {
      transfers.push_back(Transfer::Create(route, context, next, chunks.at(next)));
      next += group_.size();
      RETURN_IF_ERROR(transfers.back()->Begin());
      progress = true;
    }
    for (const std::unique_ptr<Transfer>& transfer : transfers) {
      ASSIGN_OR_RETURN(const bool moved, transfer->Step());
      progress = progress || moved;
      if (!transfer->done()) continue;
      if (group_.slot(sequence).finished.IncrementBelow(sequence, chunks.size()) + 1 == chunks.size()) group_.Notify();
    }
    std::erase_if(transfers, [](const std::unique_ptr<Transfer>& transfer) { return transfer->done(); });
    return progress;
  };
  auto missing = [&] {
    std::vector<int> ranks;
    for (const std::unique_ptr<Transfer>& transfer : transfers) {
      for (int rank : transfer->Missing()) {
        if (std::find(ranks.begin(), ranks.end(), rank) == ranks.end()) ranks.push_back(rank);
      }
    }
    return ranks;
  };
  const std::string what = Describe(operands.description, label);
  absl::Status status = Pump(step, [&] { return transfers.empty() && next >= chunks.size(); }, missing, what);
  group_.SayGoingOn();
  return status;
}

}  // namespace lockstep
