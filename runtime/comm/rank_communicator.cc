#include "runtime/comm/rank_communicator.h"

#include <algorithm>
#include <utility>

#include "core/check.h"
#include "core/status.h"
#include "runtime/comm/collective/operands.h"

namespace lockstep {
namespace {

constexpr absl::Duration kFailureLinger = absl::Seconds(2);

class GroupMemory final : public RegisteredMemory {
 public:
  explicit GroupMemory(std::shared_ptr<Segment> segment)
      : RegisteredMemory(segment->data(), segment->bytes()), segment_(std::move(segment)) {}

 private:
  std::shared_ptr<Segment> segment_;  // shared with collectives in flight
};

// Between groups, the order may differ (route_choice.h), except between two groups of one rank each.
bool AddsInRankOrder(const Links* links, int ranks, const Communicator::Options& options) {
  return links == nullptr || options.in_rank_order || ranks == 2;
}

}  // namespace

absl::StatusOr<std::unique_ptr<RankCommunicator>> RankCommunicator::Create(GroupConfig config,
                                                                           std::unique_ptr<Links> links,
                                                                           std::string transport,
                                                                           const Options& options,
                                                                           const RoutePolicy& policy) {
  auto world_groups = std::make_shared<WorldGroups>();
  RecordedRank recorded{
      .rank = config.first_rank + config.index, .size = static_cast<int>(config.hosts.size()), .world = config.world};
  CopyText(config.hosts[recorded.rank], recorded.host, sizeof(recorded.host));
  CopyText(transport, recorded.transport, sizeof(recorded.transport));
  world_groups->SetRecorder(Recorder::Create(recorded, RecorderOptions::FromEnvironment(!config.one_process)));
  return CreateIn(std::move(world_groups), std::move(config), std::move(links), std::move(transport), options, policy);
}

absl::StatusOr<std::unique_ptr<RankCommunicator>> RankCommunicator::CreateIn(
    std::shared_ptr<WorldGroups> world_groups, GroupConfig config, std::unique_ptr<Links> links, std::string transport,
    const Options& options, const RoutePolicy& policy) {
  config.world_groups = world_groups.get();
  std::unique_ptr<RankCommunicator> communicator(new RankCommunicator(
      std::move(config), std::move(world_groups), std::move(links), std::move(transport), options, policy));
  RETURN_IF_ERROR(communicator->group_->AwaitJoined());
  if (communicator->links_ != nullptr || options.progress_thread) {
    communicator->progress_->thread = std::thread([rank = communicator.get()] { rank->ProgressLoop(); });
  }
  return communicator;
}

RankCommunicator::RankCommunicator(GroupConfig config, std::shared_ptr<WorldGroups> world_groups,
                                   std::unique_ptr<Links> links, std::string transport, const Options& options,
                                   const RoutePolicy& policy)
    : Communicator(
          config.first_rank + config.index, config.hosts, std::move(transport),
          {.reduces_in_rank_order = AddsInRankOrder(links.get(), static_cast<int>(config.hosts.size()), options),
           .timeout = options.timeout,
           .recorder = world_groups->recorder()}),
      generation_(ForkGeneration()),
      options_(options),
      policy_(policy),
      world_groups_(std::move(world_groups)),
      group_(std::make_shared<Group>(std::move(config), options.timeout)),
      links_(std::move(links)),
      recorded_as_(world_groups_->recorder()->AddCommunicator()),
      progress_(std::make_unique<Progress>()) {
  if (links_ != nullptr)
    between_groups_ = std::make_unique<BetweenGroups>(group_.get(), links_.get(), options.in_rank_order, policy);
  world_groups_->Add(group_);
  group_->Join();
}

RankCommunicator::~RankCommunicator() {
  if (!CheckProcess().ok()) {
    (void)progress_.release();
    (void)between_groups_.release();
    (void)links_.release();
    return;
  }
  if (!progress_->ops.empty())
    Abort(FailedPrecondition() << "it destroyed its communicator with collectives in flight");
  if (progress_->thread.joinable()) {
    {
      std::lock_guard<std::mutex> lock(progress_->mutex);
      progress_->stop = true;
    }
    progress_->changed.notify_all();
    progress_->thread.join();
  }
  const bool failed = !group_->failure().ok();
  if (failed && !group_->one_process()) group_->AwaitFailureSeen(kFailureLinger);
  const bool last = group_->Leave();
  if (between_groups_ != nullptr) between_groups_->Leave(last);
  group_->OnIdle([] {}, nullptr);  // the world's group lives as long as world_groups_, but the links do not
  world_groups_->Remove(group_.get());
}

int RankCommunicator::groups() const { return links_ == nullptr ? 1 : static_cast<int>(links_->group_begins().size()); }

int RankCommunicator::largest_group() const {
  if (links_ == nullptr) return size();
  const std::vector<int>& begins = links_->group_begins();
  int largest = size() - begins.back();
  for (size_t g = 0; g + 1 < begins.size(); ++g) largest = std::max(largest, begins[g + 1] - begins[g]);
  return largest;
}

void RankCommunicator::SetRoutes(const RoutePolicy& policy) {
  policy_ = policy;
  if (between_groups_ == nullptr) return;
  // The progress thread reads the policy, and takes started collectives from the queue under this lock.
  std::lock_guard<std::mutex> lock(progress_->mutex);
  between_groups_->SetPolicy(policy);
}

absl::Status RankCommunicator::CheckProcess() const {
  if (ForkGeneration() == generation_) return absl::OkStatus();
  return FailedPrecondition() << "this process was forked from the one of " << group_->Name(rank())
                              << ", to which the communicator belongs; make another one here";
}

absl::StatusOr<Communicator::Ticket> RankCommunicator::Start(const Collective& collective, const void* input,
                                                             void* output, const Call& call) {
  RETURN_IF_ERROR(CheckProcess());
  if (absl::Status failure = Finish(group_->failure()); !failure.ok()) {
    if (!world_groups_->NoteError()) return failure;
    return Annotate(failure, "the communicator takes no more calls, since an earlier one failed");
  }
  RETURN_IF_ERROR(CheckOperands(collective, input, output, call, rank(), size()));
  auto op = std::make_unique<Op>();
  op->sequence = next_sequence_++;
  op->label = std::string(call.label.substr(0, kLabelBytes - 1));
  op->input = static_cast<const std::byte*>(ReadsInput(collective, rank()) ? input : output);
  op->output = static_cast<std::byte*>(output);
  op->description = DescriptionOf(collective, call);
  op->collective = collective;
  if (call.compared_only) op->collective.counts.assign(collective.counts.size(), 0);  // no data is moved
  Op* const started = op.get();
  Progress& p = *progress_;
  if (p.thread.joinable()) {
    {
      std::lock_guard<std::mutex> lock(p.mutex);
      p.queue.push_back(started);
      p.ops.emplace(started->sequence, std::move(op));
    }
    p.changed.notify_all();
  } else {
    if (p.queue.size() == kSlots) RunOldest();  // otherwise peers would wait until this rank frees its slot
    p.queue.push_back(started);
    p.ops.emplace(started->sequence, std::move(op));
    absl::Status published = Publish(*started);
    if (!published.ok()) {
      p.queue.pop_back();
      p.ops.erase(started->sequence);
      group_->AwaitUntouched();
      world_groups_->NoteError();
      return published;
    }
  }
  return Ticket{started->sequence};
}

absl::Status RankCommunicator::Wait(Ticket ticket, Stream*) {
  RETURN_IF_ERROR(CheckProcess());
  Progress& p = *progress_;
  std::unique_lock<std::mutex> lock(p.mutex);
  auto found = p.ops.find(ticket.id);
  if (found == p.ops.end()) return FailedPrecondition() << "ticket " << ticket.id << " is not in flight";
  Op& op = *found->second;
  if (p.thread.joinable()) {
    while (!op.done) {
      // The waiting thread runs the op itself, which saves waking two threads.
      if (p.busy) p.changed.wait(lock);
      else RunOldest(lock);
    }
  } else {
    while (!op.done) RunOldest();
  }
  absl::Status result = std::move(op.result);
  p.ops.erase(found);
  if (!result.ok()) world_groups_->NoteError();
  return result;
}

absl::StatusOr<std::unique_ptr<RegisteredMemory>> RankCommunicator::Allocate(size_t bytes, std::string_view label) {
  RETURN_IF_ERROR(CheckProcess());
  // The number of the following barrier names the segment. It is equal on all ranks and never used again.
  ASSIGN_OR_RETURN(std::shared_ptr<Segment> segment, group_->memory().Allocate(bytes, 2 * next_sequence_ + 2));
  RETURN_IF_ERROR(Run({.op = CollectiveOp::kAllocate}, nullptr, nullptr, {.label = label}));
  return std::make_unique<GroupMemory>(std::move(segment));
}

absl::StatusOr<std::unique_ptr<RegisteredMemory>> RankCommunicator::AllocateShared(size_t bytes,
                                                                                   std::string_view label) {
  RETURN_IF_ERROR(CheckProcess());
  if (links_ != nullptr) {
    const int other = links_->group_begins()[1];
    return FailedPrecondition() << "`" << label << "`: " << group_->Name(0) << " and " << group_->Name(other)
                                << " have no memory in common";
  }
  ASSIGN_OR_RETURN(std::shared_ptr<Segment> segment, ShareSegment(0, bytes, label));
  return std::make_unique<GroupMemory>(std::move(segment));
}

absl::Status RankCommunicator::Barrier(std::string_view label) {
  return Run({.op = CollectiveOp::kBarrier}, nullptr, nullptr, {.label = label});
}

absl::StatusOr<std::vector<std::string>> RankCommunicator::AllGatherBytes(std::string_view bytes,
                                                                          std::string_view label) {
  const uint64_t mine = bytes.size();
  std::vector<uint64_t> sizes(size());
  RETURN_IF_ERROR(Run(Collective::AllGather(1, DType::kU64), &mine, sizes.data(), {.label = label}));
  const uint64_t longest = *std::max_element(sizes.begin(), sizes.end());
  std::string padded(bytes);
  padded.resize(longest);
  std::string all(longest * size(), '\0');
  RETURN_IF_ERROR(Run(Collective::AllGather(static_cast<int64_t>(longest), DType::kU8), padded.data(), all.data(),
                      {.label = label}));
  std::vector<std::string> result;
  for (int r = 0; r < size(); ++r) result.push_back(all.substr(r * longest, sizes[r]));
  return result;
}

absl::Status RankCommunicator::CheckPeers() {
  RETURN_IF_ERROR(CheckProcess());
  RETURN_IF_ERROR(Finish(group_->failure()));
  return Finish(group_->CheckAlive("work outside of the communicator"));
}

void RankCommunicator::Abort(const absl::Status& cause) {
  LOCKSTEP_CHECK(!cause.ok()) << "abort without a cause";
  if (!CheckProcess().ok()) return;
  const absl::Status failure =
      group_->Fail(rank(), absl::AbortedError(group_->Name(rank()) + " gave up: " + std::string(cause.message())));
  world_groups_->recorder()->SetFailure(failure);
  world_groups_->NoteError();
  group_->AwaitUntouched();
}

}  // namespace lockstep
