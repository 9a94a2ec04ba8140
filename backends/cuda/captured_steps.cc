#include "backends/cuda/captured_steps.h"

#include <algorithm>
#include <cstdio>
#include <string>

#include "core/check.h"
#include "core/status.h"
#include "runtime/cuda/nccl_communicator.h"

namespace lockstep::cuda {

absl::Status CapturedSteps::RunEach(const StepList& steps, StepContext& context) {
  for (const auto& step : steps) {
    const absl::Status status = step->Run(context);
    if (!status.ok()) return Annotate(status, step->info().ToString());
  }
  return absl::OkStatus();
}

// Returns false if a collective does not use NCCL.
bool CapturedSteps::FindAxes(const StepList& steps, const StepContext& context) {
  for (const auto& step : steps) {
    if (step->info().kind != StepKind::kStart) continue;
    ++collectives_;
    const int axis = step->info().collective->mesh_axis;
    if (std::find(axes_.begin(), axes_.end(), axis) != axes_.end()) continue;
    axes_.push_back(axis);
    if (dynamic_cast<NcclCommunicator*>(context.axis(axis).communicator) == nullptr) return false;
  }
  std::sort(axes_.begin(), axes_.end());  // the same order on all ranks
  return true;
}

absl::Status CapturedSteps::Run(const StepList& steps, StepContext& context) {
  const auto buffers = context.buffers();
  switch (state_) {
    case State::kFirst:
      stream_ = static_cast<CudaStream*>(context.stream());
      RETURN_IF_ERROR(RunEach(steps, context));
      state_ = FindAxes(steps, context) ? State::kSecond : State::kStepByStep;
      return absl::OkStatus();
    case State::kStepByStep: return RunEach(steps, context);
    case State::kSecond: RETURN_IF_ERROR(Capture(steps, context)); break;
    case State::kCaptured:
      LOCKSTEP_CHECK(std::equal(buffers.begin(), buffers.end(), addresses_.begin(), addresses_.end()))
          << "a captured graph's buffers have moved";
      break;
  }
  if (state_ == State::kStepByStep) return RunEach(steps, context);
  RETURN_IF_ERROR(Compare(context));
  return Launch();
}

absl::Status CapturedSteps::Capture(const StepList& steps, StepContext& context) {
  absl::Status status = BeginCapture(context);
  const bool begun = status.ok();
  // A rank that captured alone could wait for its peers in NCCL.
  absl::StatusOr<bool> all = OnAllRanks(begun, "the beginning of the capture", context);
  const bool captures = all.ok() && *all;
  if (captures) status = RunEach(steps, context);
  if (begun) status = EndCapture(captures, status, context);
  if (captures) all = OnAllRanks(status.ok(), "the capture of the steps", context);
  if (!status.ok()) {
    std::fprintf(stderr, "lockstep: the program runs step by step, as it cannot be captured as a CUDA graph: %s\n",
                 std::string(status.message()).c_str());
  }
  if (!all.ok() || !*all) graph_.reset();
  RETURN_IF_ERROR(all.status());
  state_ = *all ? State::kCaptured : State::kStepByStep;
  return absl::OkStatus();
}

// Goes through the axes one after the other: a false value on one rank reaches its row, then all rows.
absl::StatusOr<bool> CapturedSteps::OnAllRanks(bool mine, std::string_view what, StepContext& context) const {
  for (int axis : axes_) {
    ASSIGN_OR_RETURN(const std::vector<std::string> all,
                     context.axis(axis).communicator->AllGatherBytes(mine ? "yes" : "", what));
    mine = std::all_of(all.begin(), all.end(), [](const std::string& each) { return !each.empty(); });
  }
  return mine;
}

absl::Status CapturedSteps::BeginCapture(StepContext& context) {
  CudaDevice& device = stream_->device();
  RETURN_IF_ERROR(device.MakeCurrent());
  graph_ = std::make_shared<LaunchableGraph>(device);
  for (int axis : axes_) static_cast<NcclCommunicator*>(context.axis(axis).communicator)->AddGraph(graph_);
  // NCCL launches into the capture from its own threads, which all modes allow. THREAD_LOCAL forbids allocations during
  // the capture only on this thread, so NCCL's threads may allocate.
  const DriverApi& api = device.api();
  return device.Check(api.StreamBeginCapture(stream_->handle(), CU_STREAM_CAPTURE_MODE_THREAD_LOCAL),
                      "cuStreamBeginCapture");
}

absl::Status CapturedSteps::EndCapture(bool keeps, absl::Status status, StepContext& context) {
  status.Update(graph_->EndCapture(stream_->handle(), keeps && status.ok()));
  for (int axis : axes_) static_cast<NcclCommunicator*>(context.axis(axis).communicator)->DropCaptured();
  addresses_.assign(context.buffers().begin(), context.buffers().end());
  return status;
}

absl::Status CapturedSteps::Compare(StepContext& context) const {
  std::vector<Communicator::Ticket> tickets;
  for (int axis : axes_) {
    const AxisContext& a = context.axis(axis);
    ASSIGN_OR_RETURN(
        const Communicator::Ticket ticket,
        a.communicator->Start(Collective::AllReduce(collectives_, DType::kU8, ReduceKind::kSum), nullptr, nullptr,
                              {.label = "the collectives of a CUDA graph",
                               .stream = context.stream(),
                               .evidence = a.evidence,
                               .compared_only = true}));
    tickets.push_back(ticket);
  }
  for (size_t i = 0; i < axes_.size(); ++i) {
    RETURN_IF_ERROR(context.axis(axes_[i]).communicator->Wait(tickets[i], context.stream()));
  }
  return absl::OkStatus();
}

absl::Status CapturedSteps::Launch() {
  RETURN_IF_ERROR(stream_->device().MakeCurrent());
  return graph_->Launch(stream_->handle());
}

}  // namespace lockstep::cuda
