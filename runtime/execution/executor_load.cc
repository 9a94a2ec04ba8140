// From an executable to an executor: the agreement of the ranks, and the memory of the buffers.

#include <algorithm>
#include <utility>

#include "core/check.h"
#include "core/status.h"
#include "runtime/execution/agreement.h"
#include "runtime/execution/executor.h"
#include "runtime/execution/part_order.h"

namespace lockstep {
namespace {

// Returns the position in mesh.Groups(axis) of the rank's group.
int GroupOf(int64_t rank, const Mesh& mesh, std::string_view axis) {
  const std::vector<std::vector<int64_t>> groups = mesh.Groups(axis);
  const auto group = std::find_if(groups.begin(), groups.end(), [&](const std::vector<int64_t>& ranks) {
    return std::find(ranks.begin(), ranks.end(), rank) != ranks.end();
  });
  LOCKSTEP_CHECK(group != groups.end()) << "rank " << rank << " in " << mesh.ToString();
  return static_cast<int>(group - groups.begin());
}

// Returns a text that ranks must have in common besides the program: the states that share memory.
std::string SharedStates(const Executable& executable) {
  std::string text;
  for (const Buffer& buffer : executable.buffers) {
    if (buffer.sharers > 1 && buffer.part_of < 0) text += "shared: " + buffer.ToString() + "\n";
  }
  return text;
}

RecordedStep::Kind KindOf(StepKind kind) {
  switch (kind) {
    case StepKind::kKernel: return RecordedStep::Kind::kKernel;
    case StepKind::kCopy: return RecordedStep::Kind::kCopy;
    case StepKind::kStart: return RecordedStep::Kind::kStart;
    case StepKind::kWait: return RecordedStep::Kind::kWait;
    case StepKind::kPush: return RecordedStep::Kind::kPush;
    case StepKind::kStartPull: return RecordedStep::Kind::kStartPull;
    case StepKind::kWaitPull: return RecordedStep::Kind::kWaitPull;
  }
  LOCKSTEP_CHECK(false) << "no kind of step " << static_cast<int>(kind);
}

}  // namespace

absl::StatusOr<std::unique_ptr<Executor>> Executor::Load(Executable executable, Communicator* communicator,
                                                         Device* device, const ExecutorOptions& options) {
  const ExclusiveUse use(communicator->in_use());
  if (!use.ok()) return use.Error("the communicator for executor @" + executable.name);
  std::unique_ptr<Executor> executor(new Executor(std::move(executable), communicator, device, options));
  RETURN_IF_ERROR(executor->Agree());  // on an error, all ranks fail, and none waits
  absl::Status status = executor->MakeAxes();
  if (status.ok()) status = executor->Prepare();
  if (status.ok()) status = executor->Allocate();
  if (status.ok()) {
    absl::StatusOr<std::unique_ptr<ServedStates>> served =
        ServedStates::Create(executor->executable_, options.servers, *communicator);
    status = served.status();
    if (status.ok()) executor->served_ = *std::move(served);
  }
  if (status.ok()) {
    executor->NameSteps();
    return executor;
  }
  executor->GiveUp(status);
  return status;
}

// Checks that the executable can run with this communicator and device.
absl::Status Executor::CheckFits() const {
  const int64_t ranks = executable_.mesh.num_ranks();
  if (ranks != communicator_.size()) {
    return InvalidArgument() << "@" << executable_.name << " is compiled for " << ranks << " ranks (mesh "
                             << executable_.mesh.ToString() << "), and the communicator has " << communicator_.size();
  }
  if (ranks > 1 && device_.is_host() != communicator_.is_host()) {
    return InvalidArgument() << "@" << executable_.name << " runs in the memory of " << device_.name()
                             << ", and the communicator (" << communicator_.transport() << ") gives out memory of "
                             << (communicator_.is_host() ? "the host" : "a device") << "; it has to be one for "
                             << device_.name();
  }
  return absl::OkStatus();
}

// All ranks get the same result.
absl::Status Executor::Agree() {
  RETURN_IF_ERROR(AgreeOnSuccess(communicator_, "the load of @" + executable_.name, CheckFits()));
  std::string certificate;
  for (const std::string& line : executable_.certificate.lines) certificate += line + "\n";
  certificate += executable_.certificate.ToString();
  // Programs with equal collectives may still differ, for example in a learning rate.
  const std::string program = "check_every=" + std::to_string(options_.check_every) +
                              (options_.profile ? " profile=True\n" : " profile=False\n") + SharedStates(executable_) +
                              (executable_.common_text.empty() ? executable_.graph_text : executable_.common_text);
  const bool has_parts = !executable_.parts_along.empty();  // their certificates differ
  evidence_ =
      std::make_unique<ReplicaEvidence>(executable_, options_.check_every, (has_parts ? "" : certificate) + program);
  if (communicator_.size() == 1) return absl::OkStatus();
  // Compared first, because kernels for another number of threads or another processor may also need another layout in
  // a bucket.
  RETURN_IF_ERROR(
      AgreeOnText(communicator_, "threads of a rank of @" + executable_.name, std::to_string(executable_.threads),
                  "Sums are split by the number of threads, so bits may differ. Set the same number on all ranks "
                  "(threads=1, for example), or OMP_NUM_THREADS."));
  RETURN_IF_ERROR(
      AgreeOnText(communicator_, "processor and libraries of @" + executable_.name, executable_.fingerprint,
                  "Their kernels round differently. Run the same build everywhere. If the processors differ, "
                  "compile for an instruction set that all have (isa=\"avx2\", for example)."));
  if (has_parts) {
    RETURN_IF_ERROR(AgreeOnText(communicator_, "program @" + executable_.name, program));
    return AgreeOnParts(communicator_, executable_);
  }
  RETURN_IF_ERROR(AgreeOnText(communicator_, "order certificate of @" + executable_.name, certificate));
  return AgreeOnText(communicator_, "program @" + executable_.name, program);
}

void Executor::NameSteps() {
  recorder_ = communicator_.recorder();
  if (recorder_ == nullptr) return;
  const Mesh& mesh = executable_.mesh;
  for (int rank = 0; rank < communicator_.size() && !executable_.parts_along.empty(); ++rank)
    roles_.push_back(executable_.parts_along + " " + std::to_string(mesh.Coordinate(rank, executable_.parts_along)));
  RecordedProgram program;
  program.name = executable_.name;
  if (!roles_.empty()) program.part = roles_[static_cast<size_t>(communicator_.rank())];
  for (const std::unique_ptr<Step>& step : executable_.steps) {
    const StepInfo& info = step->info();
    RecordedStep named{KindOf(info.kind), info.name, info.source, {}, 0};
    if (info.collective) {
      named.label = info.collective->name_in_messages();
      if (!info.collective->message_name.empty()) named.source.clear();  // it contains the source
      named.is_urgent = info.collective->is_urgent;
      named.bytes = static_cast<int64_t>(std::max(info.collective->input.bytes, info.collective->output.bytes));
    }
    if (info.served >= 0) {
      const ServedState& state = executable_.served[static_cast<size_t>(info.served)];
      named.label = state.name;
      named.bytes = static_cast<int64_t>(state.type.num_bytes());
    }
    program.steps.push_back(std::move(named));
  }
  recorded_as_ = recorder_->AddProgram(std::move(program));
  recorder_->SetRoles(recorded_as_, roles_);
}

absl::Status Executor::MakeAxes() {
  const Mesh& mesh = executable_.mesh;
  const int rank = communicator_.rank();
  for (const MeshAxis& axis : mesh.axes()) {
    AxisContext context;
    context.coordinate = static_cast<int>(mesh.Coordinate(rank, axis.name));
    if (axis.size == communicator_.size()) {
      context.communicator = &communicator_;
    } else if (axis.size > 1) {
      const std::string label = "axis " + axis.name + " of @" + executable_.name;
      ASSIGN_OR_RETURN(auto part, communicator_.Split(GroupOf(rank, mesh, axis.name), label));
      // Split keeps the order of ranks, so a rank's number in its part is its coordinate, as for roots and slices.
      LOCKSTEP_CHECK(part->size() == axis.size && part->rank() == context.coordinate) << label;
      context.communicator = part.get();
      parts_.push_back(std::move(part));
    }
    context.urgent = context.communicator;
    axes_.push_back(context);
    RETURN_IF_ERROR(MakeUrgentCommunicator(axes_.back(), static_cast<int>(axes_.size()) - 1));
  }
  return MakeLanes();
}

// All ranks along the axis take part in each split. Each rank at no end of the lane gets a communicator of its own.
absl::Status Executor::MakeLanes() {
  const std::vector<MeshAxis>& axes = executable_.mesh.axes();
  for (const Lane& lane : executable_.lanes) {
    const auto axis = static_cast<size_t>(
        std::find_if(axes.begin(), axes.end(), [&](const MeshAxis& each) { return each.name == lane.axis; }) -
        axes.begin());
    const int coordinate = axes_[axis].coordinate;
    const bool is_end = coordinate == lane.source || coordinate == lane.target;
    const std::string label = "lane " + lane.ToString() + " of @" + executable_.name;
    ASSIGN_OR_RETURN(auto part, axes_[axis].communicator->Split(is_end ? 0 : 1 + coordinate, label));
    AxisContext context;
    if (is_end) {
      LOCKSTEP_CHECK(part->size() == 2) << label;
      context.communicator = context.urgent = part.get();
      context.coordinate = part->rank();
    }
    axes_.push_back(context);
    parts_.push_back(std::move(part));
  }
  return absl::OkStatus();
}

// Between hosts, a communicator runs one collective after the other. So urgent collectives get their own communicator,
// with its own thread and connections, if they would otherwise queue behind others.
absl::Status Executor::MakeUrgentCommunicator(AxisContext& context, int axis) {
  if (context.communicator == nullptr || !context.communicator->is_host()) return absl::OkStatus();
  if (context.communicator->ranks_on_this_host() == context.communicator->size()) return absl::OkStatus();
  bool has_urgent = false, has_others = false;
  for (const std::unique_ptr<Step>& step : executable_.steps) {
    const std::optional<CollectiveInfo>& collective = step->info().collective;
    if (collective.has_value() && collective->mesh_axis == axis)
      (collective->is_urgent ? has_urgent : has_others) = true;
  }
  if (!has_urgent || !has_others) return absl::OkStatus();
  const std::string label = "urgent, axis " + executable_.mesh.axes()[static_cast<size_t>(axis)].name + " of @";
  ASSIGN_OR_RETURN(auto lane, context.communicator->Split(0, label + executable_.name));
  context.urgent = lane.get();
  parts_.push_back(std::move(lane));
  return absl::OkStatus();
}

// Before memory is allocated, because measurements need some.
absl::Status Executor::Prepare() {
  return executable_.prepare ? executable_.prepare(device_, communicator_) : absl::OkStatus();
}

absl::Status Executor::Allocate() {
  RETURN_IF_ERROR(AllocateBuffers());
  if (!device_.is_host()) RETURN_IF_ERROR(AllocateForQueue());
  return device_.Synchronize();
}

absl::Status Executor::AllocateBuffers() {
  addresses_.assign(executable_.buffers.size(), nullptr);
  tickets_.resize(static_cast<size_t>(executable_.num_collectives));
  step_seconds_.assign(executable_.steps.size(), 0.0);
  for (StartedRun& run : started_runs_) {
    run.steps.assign(executable_.steps.size(), 0.0);
    ASSIGN_OR_RETURN(run.done, device_.CreateEvent());
  }
  for (const SettingInfo& info : executable_.settings) settings_.push_back(info.setting.value);
  evidence_->SettingsChanged(settings_);
  given_inputs_.assign(executable_.inputs.size(), nullptr);
  given_results_.assign(executable_.results.size(), nullptr);
  own_results_.assign(executable_.results.size(), nullptr);
  result_is_own_.assign(executable_.results.size(), false);
  copied_results_.resize(executable_.results.size());
  FindUpdates();
  size_t constant = 0;
  for (size_t i = 0; i < executable_.buffers.size(); ++i) {
    const Buffer& buffer = executable_.buffers[i];
    if (buffer.kind == BufferKind::kResult || (buffer.kind == BufferKind::kInput && device_.is_host())) continue;
    if (buffer.kind == BufferKind::kRegistered) {
      Communicator& communicator = *axes_[static_cast<size_t>(buffer.mesh_axis)].communicator;
      ASSIGN_OR_RETURN(auto memory, communicator.Allocate(buffer.bytes, buffer.ToString()));
      addresses_[i] = memory->data();
      if (!memory->why_copied().empty()) unregistered_.emplace_back(buffer.ToString(), memory->why_copied());
      registered_.push_back(std::move(memory));
      continue;
    }
    if (buffer.sharers > 1) continue;
    ASSIGN_OR_RETURN(auto memory, device_.Allocate(buffer.bytes, buffer.ToString()));
    addresses_[i] = memory->data();
    memory_.push_back(std::move(memory));
    if (buffer.kind == BufferKind::kConstant) {
      const Tensor& value = executable_.constants[constant++];
      RETURN_IF_ERROR(device_.CopyToDevice(addresses_[i], value.bytes(), value.num_bytes()));
    }
  }
  return AllocateShared();
}

// One piece of memory for all buffers that ranks share along an axis, because each piece needs a file descriptor.
absl::Status Executor::AllocateShared() {
  std::vector<Buffer>& buffers = executable_.buffers;
  for (size_t axis = 0; axis < axes_.size(); ++axis) {
    const auto is_shared = [&](const Buffer& buffer) {
      return buffer.sharers > 1 && buffer.mesh_axis == static_cast<int>(axis);
    };
    uint64_t bytes = 0;
    for (const Buffer& buffer : buffers) bytes += is_shared(buffer) && buffer.part_of < 0 ? AlignUp(buffer.bytes) : 0;
    if (bytes == 0) continue;
    const std::string label = "states of @" + executable_.name + " that ranks share";
    ASSIGN_OR_RETURN(auto memory, axes_[axis].communicator->AllocateShared(bytes, label));
    std::byte* next = memory->data();
    for (size_t i = 0; i < buffers.size(); ++i) {
      if (!is_shared(buffers[i])) continue;
      if (buffers[i].part_of < 0) {
        addresses_[i] = std::exchange(next, next + AlignUp(buffers[i].bytes));
      } else {  // parts come after the whole
        addresses_[i] = addresses_[static_cast<size_t>(buffers[i].part_of)] +
                        static_cast<uint64_t>(axes_[axis].coordinate) * buffers[i].bytes;
      }
    }
    registered_.push_back(std::move(memory));
  }
  return absl::OkStatus();
}

// Allocates memory with the same addresses in all runs: results, and inputs that are copied while the previous run
// computes.
absl::Status Executor::AllocateForQueue() {
  ASSIGN_OR_RETURN(taken_, device_.CreateEvent());
  for (const ValueInfo& info : executable_.inputs) {
    ASSIGN_OR_RETURN(auto memory, device_.Allocate(info.local_type.num_bytes(), "the next input " + info.name));
    ahead_.push_back(memory->data());
    memory_.push_back(std::move(memory));
  }
  if (!settings_.empty()) {
    ASSIGN_OR_RETURN(auto memory, device_.Allocate(settings_.size() * sizeof(double), "the next settings"));
    settings_ahead_ = memory->data();
    memory_.push_back(std::move(memory));
  }
  for (size_t i = 0; i < executable_.results.size(); ++i) {
    const ValueInfo& info = executable_.results[i];
    ASSIGN_OR_RETURN(auto memory, device_.Allocate(info.local_type.num_bytes(), "result " + info.name));
    own_results_[i] = addresses_[static_cast<size_t>(info.buffer)] = memory->data();
    memory_.push_back(std::move(memory));
  }
  return absl::OkStatus();
}

void Executor::FindUpdates() {
  std::vector<bool> updated(executable_.buffers.size(), false);
  first_update_ = executable_.steps.size();
  size_t first_start = executable_.steps.size();
  for (size_t i = 0; i < executable_.steps.size(); ++i) {
    const StepInfo& step = executable_.steps[i]->info();
    if (step.kind == StepKind::kStart) first_start = std::min(first_start, i);
    if (step.kind == StepKind::kPush) first_update_ = std::min(first_update_, i);  // updates states on servers
    for (int32_t buffer : BuffersWritten(step)) {
      const Buffer& written = executable_.buffers[static_cast<size_t>(buffer)];
      if (written.kind != BufferKind::kState) continue;
      const bool is_shared = written.part_of >= 0;
      updated[static_cast<size_t>(is_shared ? written.part_of : buffer)] = true;
      // Other ranks may write their parts as soon as this one has started a collective.
      first_update_ = std::min(first_update_, is_shared ? first_start : i);
    }
  }
  for (const ValueInfo& state : executable_.states) {
    const bool is_written = state.buffer >= 0 && updated[static_cast<size_t>(state.buffer)];
    if (is_written || state.is_served) updated_states_.push_back(state.name);
  }
}

}  // namespace lockstep
