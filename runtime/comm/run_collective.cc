// The stages of a collective after its start, on the thread that makes progress: it is shown to the peers, waits for
// theirs, does its share of the work, and is retired.

#include <chrono>
#include <cstring>
#include <utility>

#include "core/status.h"
#include "runtime/comm/collective/description.h"
#include "runtime/comm/collective/reduce.h"
#include "runtime/comm/rank_communicator.h"
#include "runtime/record/clock.h"

namespace lockstep {
namespace {

constexpr size_t kChunkBytes = 128 * 1024;  // of one rank's operand
constexpr std::chrono::milliseconds kIdlePoll(20);

}  // namespace

void RankCommunicator::RunOldest() {
  Op* op = progress_->queue.front();
  op->result = Finish(RunOp(*op));
  progress_->queue.pop_front();
  op->done = true;
}

void RankCommunicator::ProgressLoop() {
  Progress& p = *progress_;
  std::unique_lock<std::mutex> lock(p.mutex);
  for (;;) {
    while (p.busy || (!p.stop && p.queue.empty())) {
      if (between_groups_ == nullptr) {
        p.changed.wait(lock);
      } else if (p.changed.wait_for(lock, kIdlePoll) == std::cv_status::timeout && !p.busy) {
        (void)between_groups_->Poll();  // a failure must spread even while this rank computes
      }
    }
    if (p.queue.empty()) break;
    RunOldest(lock);
  }
}

void RankCommunicator::RunOldest(std::unique_lock<std::mutex>& lock) {
  Progress& p = *progress_;
  p.busy = true;
  Op* const op = p.queue.front();
  lock.unlock();
  absl::Status result = Finish(RunOp(*op));
  lock.lock();
  p.queue.pop_front();
  op->result = std::move(result);
  op->done = true;
  p.busy = false;
  p.changed.notify_all();
}

absl::Status RankCommunicator::Publish(Op& op) {
  absl::Status status = PublishOperands(op);
  if (!status.ok()) return group_->Fail(rank(), status);
  Record(op, TransferEvent::Phase::kPosted, group_->post(op.sequence, group_->index()).posted_at);
  return status;
}

void RankCommunicator::Record(const Op& op, TransferEvent::Phase phase, int64_t time) {
  Recorder& recorder = *world_groups_->recorder();
  if (!recorder.is_on()) return;
  TransferEvent event{.time = time, .sequence = op.sequence, .communicator = recorded_as_, .phase = phase};
  // The last rank of those that this rank has seen: the rank for which it slept, otherwise the last one in its shared
  // memory.
  if (phase == TransferEvent::Phase::kMet) {
    const int slept_for = group_->slept_for();
    event.last = group_->NumberInWorld(slept_for >= 0 ? slept_for : group_->LastToPost(op.sequence));
  }
  if (phase == TransferEvent::Phase::kPosted) CopyText(op.label, event.label, sizeof(event.label));
  recorder.Record(event);
}

// Finds the operands' positions, or copies them to memory that peers can reach, and publishes the positions. Operands
// that no peer touches are not copied.
absl::Status RankCommunicator::PublishOperands(Op& op) {
  const Collective& c = op.collective;
  const size_t in_bytes = InputBytes(c, size());
  const size_t out_bytes = OutputBytes(c, size());
  PeerMemory& memory = group_->memory();
  std::optional<PeerMemory::Located> output =
      GetsNothing(c, rank()) ? PeerMemory::Located() : memory.Find(op.output, out_bytes);
  if (!output.has_value()) {
    ASSIGN_OR_RETURN(output, memory.Stage(out_bytes));
    op.staged_output = true;
  }
  const bool is_output = !ReadsInput(c, rank()) || (op.input == op.output && in_bytes == out_bytes);
  std::optional<PeerMemory::Located> input = is_output ? output : memory.Find(op.input, in_bytes);
  if (!input.has_value()) {
    ASSIGN_OR_RETURN(input, memory.Stage(in_bytes));
  }
  const bool staged_input = input->segment != nullptr && input->ref.segment % 2 == 1;
  if (staged_input && ReadsInput(c, rank())) {
    RETURN_IF_ERROR(group_->BeginWork());
    std::memcpy(input->segment->data(), op.input, in_bytes);
    group_->EndWork();
  }
  op.located_input = *std::move(input);
  op.located_output = *std::move(output);
  op.published = true;
  return group_->Publish(op.sequence, op.description, op.located_input.ref, op.located_output.ref, op.label);
}

absl::Status RankCommunicator::RunOp(Op& op) {
  RETURN_IF_ERROR(group_->failure());
  if (!op.published) RETURN_IF_ERROR(Publish(op));
  group_->ForgetSleep();
  RETURN_IF_ERROR(group_->AwaitPosted(op.sequence));
  if (between_groups_ == nullptr) Record(op, TransferEvent::Phase::kMet, RecordNow());
  RETURN_IF_ERROR(Work(op));
  RETURN_IF_ERROR(CompleteOutput(op));
  op.located_input = {};
  op.located_output = {};
  group_->Retire(op.sequence);
  Record(op, TransferEvent::Phase::kMoved, RecordNow());
  return absl::OkStatus();
}

absl::Status RankCommunicator::Finish(absl::Status result) {
  if (result.ok()) return result;
  result = group_->Fail(rank(), result);
  world_groups_->recorder()->SetFailure(result);
  group_->AwaitUntouched();
  return result;
}

// Writes the part of the output that only this rank writes.
absl::Status RankCommunicator::CompleteOutput(const Op& op) {
  const bool is_zero = GetsNothing(op.collective, rank());
  const size_t bytes = OutputBytes(op.collective, size());
  if (bytes == 0 || (!is_zero && !op.staged_output)) return absl::OkStatus();
  RETURN_IF_ERROR(group_->BeginWork());
  if (is_zero) std::memset(op.output, 0, bytes);
  else std::memcpy(op.output, op.located_output.segment->data(), bytes);
  group_->EndWork();
  return absl::OkStatus();
}

absl::StatusOr<Operands> RankCommunicator::Resolve(const Op& op) {
  const Collective& c = op.collective;
  Operands operands = Operands::Of(c, size(), group_->first_rank());
  const size_t in_bytes = InputBytes(c, size());
  const size_t out_bytes = OutputBytes(c, size());
  for (int i = 0; i < group_->size(); ++i) {
    const int at = group_->first_rank() + i;
    const auto address_of = [&](const PeerMemory::Located& own, const MemoryRef& ref,
                                size_t bytes) -> absl::StatusOr<std::byte*> {
      if (i == group_->index() && own.segment != nullptr) return own.segment->data() + own.ref.offset;
      absl::StatusOr<std::byte*> address = group_->memory().Resolve(i, group_->process(i), ref, bytes);
      // If the rank died after beginning the collective, its memory cannot be opened. The error must name its death.
      if (!address.ok()) RETURN_IF_ERROR(group_->CheckAlive(i, Describe(op.description, op.label)));
      return address;
    };
    const Post& post = group_->post(op.sequence, i);
    operands.inputs.push_back(nullptr);
    operands.outputs.push_back(nullptr);
    if (ReadsInput(c, at)) {
      ASSIGN_OR_RETURN(operands.inputs.back(), address_of(op.located_input, post.input, in_bytes));
    }
    if (!GetsNothing(c, at)) {
      ASSIGN_OR_RETURN(operands.outputs.back(), address_of(op.located_output, post.output, out_bytes));
    }
  }
  return operands;
}

absl::Status RankCommunicator::Work(const Op& op) {
  if (between_groups_ == nullptr) {
    const Chunks chunks(op.collective, size(), size(), kChunkBytes);
    group_->BeginShare(op.sequence);
    RETURN_IF_ERROR(TakeChunks(op, chunks));
    group_->EndShare(op.sequence);
    return AwaitFinished(op, chunks.size());
  }
  const BetweenGroups::Plan plan = between_groups_->PlanOf(op.collective);
  group_->BeginShare(op.sequence);
  // Only a rank that has a chunk to do looks up the operands of peers. Until it has done the chunk, no peer can finish
  // the collective and free them.
  Operands operands = Operands::Of(op.collective, size(), group_->first_rank());
  if (static_cast<uint32_t>(group_->index()) < plan.chunks.size()) {
    ASSIGN_OR_RETURN(operands, Resolve(op));
  }
  const auto on_met = [&] { Record(op, TransferEvent::Phase::kMet, RecordNow()); };
  RETURN_IF_ERROR(between_groups_->Run(op.sequence, op.description, operands, plan, op.label, on_met));
  group_->EndShare(op.sequence);
  return AwaitFinished(op, plan.chunks.size());
}

// Takes chunks until none is left. As in Work, only a rank that has a chunk to do looks up the operands of peers.
absl::Status RankCommunicator::TakeChunks(const Op& op, const Chunks& chunks) {
  const Collective& c = op.collective;
  Slot& slot = group_->slot(op.sequence);
  Operands operands;
  std::vector<const std::byte*> inputs;
  std::vector<std::byte*> outputs;
  for (;;) {
    const uint32_t index = slot.claimed.IncrementBelow(op.sequence, chunks.size());
    if (index == chunks.size()) return absl::OkStatus();
    if (operands.inputs.empty()) {
      ASSIGN_OR_RETURN(operands, Resolve(op));
    }
    RETURN_IF_ERROR(group_->BeginWork());
    const Chunk chunk = chunks.at(index);
    if (TraitsOf(c.op).reduces) {
      ChunkInputs(operands, chunk, &inputs);
      ChunkOutputs(operands, chunk, &outputs);
      Reduce({.kind = c.kind,
              .dtype = c.dtype,
              .count = chunk.count,
              .world_size = size(),
              .inputs = inputs,
              .outputs = outputs});
    } else if (SourceRank(operands, chunk) >= 0) {
      ChunkOutputs(operands, chunk, &outputs);
      CopyToAll(SourceAddress(operands, chunk), outputs, chunk.count * SizeOf(c.dtype));
    }
    group_->EndWork();
    if (slot.finished.IncrementBelow(op.sequence, chunks.size()) + 1 == chunks.size()) group_->Notify();
  }
}

absl::Status RankCommunicator::AwaitFinished(const Op& op, uint32_t chunks) {
  const Slot& slot = group_->slot(op.sequence);
  const bool has_links = between_groups_ != nullptr;
  return group_->Await(
      [&] { return slot.finished.Get(op.sequence) == chunks && (!has_links || slot.linked.Get(op.sequence) == 1); },
      [&] { return group_->Unfinished(op.sequence, has_links); }, [&] { return Describe(op.description, op.label); });
}

}  // namespace lockstep
