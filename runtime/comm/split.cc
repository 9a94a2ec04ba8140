// Memory that ranks share, and RankCommunicator::Split: a communicator of some of the ranks. Each of its groups
// consists of the members from one group of this communicator and has a control block. Groups exchange messages over
// the same links, with tags of their own.

#include <unistd.h>

#include <algorithm>
#include <cstring>
#include <utility>

#include "core/status.h"
#include "runtime/comm/rank_communicator.h"

namespace lockstep {
namespace {

// The facts that each rank contributes to a split.
struct SplitFacts {
  int32_t color = 0;
  uint32_t channel = 0;  // the rank's next free channel
};

// The location of a segment that ranks of a group share. The first rank of the group sends it.
struct SegmentFacts {
  int32_t process = 0;
  int32_t descriptor = -1;
  uint64_t nonce = 0;
  uint64_t address = 0;  // in one process: the address of a std::shared_ptr<Segment> on the heap
};

template <typename T>
std::string BytesOfGroup(const T& facts) {
  return std::string(reinterpret_cast<const char*>(&facts), sizeof(facts));
}

template <typename T>
T FromBytes(const std::string& bytes) {
  T facts;
  std::memcpy(&facts, bytes.data(), std::min(bytes.size(), sizeof(facts)));
  return facts;
}

// Returns OK if `mine` is OK on all ranks, otherwise the first error.
absl::Status Agree(Communicator& communicator, const absl::Status& mine, std::string_view label) {
  const std::string message = mine.ok() ? "" : "rank " + std::to_string(communicator.rank()) + ": " + mine.ToString();
  ASSIGN_OR_RETURN(const std::vector<std::string> all, communicator.AllGatherBytes(message, label));
  for (const std::string& each : all) {
    if (!each.empty()) return ErrorStream(absl::StatusCode::kUnavailable) << "split `" << label << "`: " << each;
  }
  return absl::OkStatus();
}

}  // namespace

// Members of the new communicator from one group of this one have consecutive ranks and form a group of the new one.
absl::StatusOr<std::unique_ptr<Communicator>> RankCommunicator::Split(int color, std::string_view label) {
  RETURN_IF_ERROR(CheckProcess());
  ASSIGN_OR_RETURN(const std::vector<std::string> all,
                   AllGatherBytes(BytesOfGroup(SplitFacts{color, world_groups_->next_channel()}), label));
  std::vector<int> members, begins, names;  // begins: the first member of each group, by number in the new communicator
  std::vector<std::string> hosts;
  uint32_t channel = 0;
  int index = -1;  // this rank's index in its new group
  const std::vector<int> all_in_one = {0};
  const std::vector<int>& groups = links_ == nullptr ? all_in_one : links_->group_begins();
  auto group_of = [&](int r) { return std::upper_bound(groups.begin(), groups.end(), r) - groups.begin(); };
  for (int r = 0; r < size(); ++r) {
    const SplitFacts facts = FromBytes<SplitFacts>(all[r]);
    if (facts.color != color) continue;
    channel = std::max(channel, facts.channel);
    if (members.empty() || group_of(members.back()) != group_of(r)) begins.push_back(static_cast<int>(members.size()));
    if (r == rank()) index = static_cast<int>(members.size()) - begins.back();
    members.push_back(r);
    names.push_back(group_->NumberInWorld(r));
    hosts.push_back(host(r));
  }
  world_groups_->UseChannel(channel);
  const int here = static_cast<int>(std::find(members.begin(), members.end(), rank()) - members.begin());
  const int first = here - index;
  const auto next = std::upper_bound(begins.begin(), begins.end(), first);
  const int ranks = (next == begins.end() ? static_cast<int>(members.size()) : *next) - first;

  absl::Status status;
  std::unique_ptr<Links> links;
  if (begins.size() > 1) {
    absl::StatusOr<std::unique_ptr<Links>> among = links_->Among(members, channel, begins);
    if (among.ok()) links = *std::move(among);
    else status = among.status();
  }
  absl::StatusOr<std::shared_ptr<Segment>> block = ShareSegment(members[first], ControlBlock::Bytes(ranks), label);
  if (status.ok()) status = block.status();
  if (index == 0 && block.ok()) ControlBlock::Initialize((*block)->data(), ranks);  // the others see it after Agree
  RETURN_IF_ERROR(Agree(*this, status, label));  // also means that all have found their control block
  GroupConfig config{.keep = *block,
                     .block = ControlBlock((*block)->data(), ranks),
                     .index = index,
                     .first_rank = first,
                     .one_process = group_->one_process(),
                     .hosts = std::move(hosts),
                     .names = std::move(names),
                     .on_leave = group_->on_leave()};
  absl::StatusOr<std::unique_ptr<Communicator>> split =
      CreateIn(world_groups_, std::move(config), std::move(links), transport(), options_, policy_);
  RETURN_IF_ERROR(Agree(*this, split.status(), label));
  return split;
}

absl::StatusOr<std::shared_ptr<Segment>> RankCommunicator::ShareSegment(int first_rank, size_t bytes,
                                                                        std::string_view label) {
  absl::StatusOr<std::shared_ptr<Segment>> segment(nullptr);
  std::shared_ptr<Segment>* shared = nullptr;  // not freed if the world fails meanwhile: a peer may still copy it
  SegmentFacts facts;
  if (rank() == first_rank) {
    segment = group_->one_process() ? Segment::CreatePrivate(bytes) : Segment::CreateShared(bytes);
    if (segment.ok() && group_->one_process()) {
      shared = new std::shared_ptr<Segment>(*segment);
      facts.address = reinterpret_cast<uintptr_t>(shared);
    } else if (segment.ok()) {
      facts = {.process = getpid(), .descriptor = (*segment)->descriptor(), .nonce = (*segment)->nonce()};
    }
  }
  ASSIGN_OR_RETURN(const std::vector<std::string> all, AllGatherBytes(BytesOfGroup(facts), label));
  if (rank() != first_rank) {
    const auto where = FromBytes<SegmentFacts>(all[first_rank]);
    if (where.address != 0) segment = *reinterpret_cast<std::shared_ptr<Segment>*>(where.address);
    else if (where.process != 0) segment = Segment::Open(where.process, where.descriptor, where.nonce);
    else segment = ErrorStream(absl::StatusCode::kUnavailable) << group_->Name(first_rank) << " has no memory for it";
  }
  // No rank continues and frees its copy before all ranks have theirs.
  RETURN_IF_ERROR(Barrier(label));
  delete shared;
  return segment;
}

}  // namespace lockstep
