#include "runtime/execution/steps.h"

#include "core/check.h"
#include "core/status.h"
#include "runtime/execution/served_states.h"

namespace lockstep {
namespace {

class RunKernel : public Step {
 public:
  RunKernel(StepInfo info, Kernel kernel) : Step(std::move(info)), kernel_(std::move(kernel)) {
    reads_.resize(this->info().reads.size());
    writes_.resize(this->info().writes.size());
  }

  absl::Status Run(StepContext& context) override {
    for (size_t i = 0; i < reads_.size(); ++i) reads_[i] = context.data(info().reads[i].slice);
    for (size_t i = 0; i < writes_.size(); ++i) writes_[i] = context.data(info().writes[i].slice);
    std::byte* scratch = info().scratch.bytes > 0 ? context.data(info().scratch) : nullptr;
    const int coordinate = kernel_.mesh_axis < 0 ? 0 : context.axis(kernel_.mesh_axis).coordinate;
    return kernel_.run(KernelArgs{reads_.data(), writes_.data(), scratch, context.stream(), coordinate});
  }

 private:
  Kernel kernel_;
  std::vector<std::byte*> reads_, writes_;  // for the current run, so that a run does not allocate
};

class Copy : public Step {
 public:
  using Step::Step;
  absl::Status Run(StepContext& context) override {
    const BufferSlice& from = info().reads[0].slice;
    return context.device().CopyWithin(context.data(info().writes[0].slice), context.data(from), from.bytes);
  }
};

class StartCollective : public Step {
 public:
  using Step::Step;
  absl::Status Run(StepContext& context) override {
    if (!context.communicates(*info().collective)) return absl::OkStatus();
    absl::StatusOr<Communicator::Ticket> ticket = Start(context);
    if (!ticket.ok()) return ticket.status();
    context.ticket(info().collective->id) = *ticket;
    return absl::OkStatus();
  }

 private:
  absl::StatusOr<Communicator::Ticket> Start(StepContext& context) {
    const CollectiveInfo& c = *info().collective;
    if (c.is_transfer) return StartTransfer(c, context);
    const AxisContext& axis = context.axis(c.mesh_axis);
    // A barrier is compared even while a device captures its stream.
    const Communicator::Call call{c.name_in_messages(), context.stream(), axis.evidence,
                                  /*compared_only=*/c.op == CollectiveOp::kBarrier, c.is_called_transfer()};
    return axis.communicator_of(c).Start(c, context.data(c.input), context.data(c.output), call);
  }

  // One of a lane's two ranks has the operand and the other receives it: a broadcast, in place at the source.
  static absl::StatusOr<Communicator::Ticket> StartTransfer(const CollectiveInfo& c, StepContext& context) {
    const AxisContext& lane = context.axis(c.mesh_axis);
    std::byte* const input = context.data(c.input);
    std::byte* const output = input != nullptr ? input : context.data(c.output);
    const int root = c.pairs[0].source < c.pairs[0].target ? 0 : 1;
    const Communicator::Call call{c.name_in_messages(), context.stream(), lane.evidence, /*compared_only=*/false,
                                  /*is_transfer=*/true};
    return lane.communicator->Start(Collective::Broadcast(c.count(), c.dtype, root), input, output, call);
  }
};

class WaitForCollective : public Step {
 public:
  using Step::Step;
  absl::Status Run(StepContext& context) override {
    const CollectiveInfo& c = *info().collective;
    if (!context.communicates(c)) return absl::OkStatus();
    return context.axis(c.mesh_axis).communicator_of(c).Wait(context.ticket(c.id), context.stream());
  }
};

class PushGradient : public Step {
 public:
  using Step::Step;
  absl::Status Run(StepContext& context) override {
    return context.served().Push(info().served, context.data(info().reads[0].slice));
  }
};

class StartPull : public Step {
 public:
  using Step::Step;
  absl::Status Run(StepContext& context) override {
    return context.served().StartPull(info().served, context.data(info().writes[0].slice));
  }
};

class WaitForPull : public Step {
 public:
  using Step::Step;
  absl::Status Run(StepContext& context) override { return context.served().Wait(info().served); }
};

}  // namespace

std::unique_ptr<Step> KernelStep(StepInfo info, Kernel kernel) {
  LOCKSTEP_CHECK(info.scratch.bytes == kernel.scratch_bytes) << info.ToString();
  return std::make_unique<RunKernel>(std::move(info), std::move(kernel));
}

std::unique_ptr<Step> CopyStep(StepInfo info) {
  LOCKSTEP_CHECK(info.reads.size() == 1 && info.writes.size() == 1) << info.ToString();
  LOCKSTEP_CHECK(info.reads[0].slice.bytes == info.writes[0].slice.bytes) << info.ToString();
  return std::make_unique<Copy>(std::move(info));
}

std::unique_ptr<Step> CollectiveStep(StepInfo info) {
  LOCKSTEP_CHECK(info.collective.has_value()) << info.ToString();
  if (info.kind == StepKind::kStart) return std::make_unique<StartCollective>(std::move(info));
  return std::make_unique<WaitForCollective>(std::move(info));
}

std::unique_ptr<Step> ServedStep(StepInfo info) {
  LOCKSTEP_CHECK(info.served >= 0) << info.ToString();
  if (info.kind == StepKind::kPush) return std::make_unique<PushGradient>(std::move(info));
  if (info.kind == StepKind::kStartPull) return std::make_unique<StartPull>(std::move(info));
  return std::make_unique<WaitForPull>(std::move(info));
}

}  // namespace lockstep
