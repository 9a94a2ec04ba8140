#include "runtime/cuda/nccl_communicator.h"

#include <algorithm>
#include <chrono>
#include <cstdio>
#include <cstring>
#include <mutex>
#include <string>
#include <thread>
#include <utility>

#include "absl/functional/function_ref.h"
#include "core/status.h"
#include "runtime/comm/collective/description.h"
#include "runtime/comm/collective/operands.h"
#include "runtime/cuda/nccl_types.h"

namespace lockstep::cuda {
namespace {

constexpr auto kNcclRest = std::chrono::microseconds(50);
// within this time, NCCL's thread has usually launched a collective
constexpr auto kNcclBusy = std::chrono::microseconds(100);
// The label of the barrier of all ranks, in whichever wait they are late.
constexpr char kLate[] = "a GPU that waits for its peers";

// Returns the first error of any rank, the same on all ranks.
absl::Status Agree(Communicator& host, const absl::Status& mine, std::string_view label) {
  const std::string text = mine.ok() ? "" : mine.ToString();
  ASSIGN_OR_RETURN(const std::vector<std::string> all, host.AllGatherBytes(text, label));
  for (int rank = 0; rank < host.size(); ++rank) {
    const std::string& error = all[static_cast<size_t>(rank)];
    if (error.empty()) continue;
    return ErrorStream(absl::StatusCode::kUnavailable)
           << label << ": rank " << rank << " on host " << host.host(rank) << ": " << error;
  }
  return absl::OkStatus();
}

}  // namespace

class NcclCommunicator::Memory final : public RegisteredMemory {
 public:
  Memory(std::byte* data, size_t bytes, void* handle, std::string why_copied, std::shared_ptr<NcclHandle> nccl,
         std::shared_ptr<NcclStream> nccl_stream)
      : RegisteredMemory(data, bytes, std::move(why_copied)),
        handle_(handle),
        nccl_(std::move(nccl)),
        nccl_stream_(std::move(nccl_stream)) {}
  ~Memory() override {
    // Registrations end with the communicator, after its abort has ended.
    if (!nccl_stream_->AwaitIdle([] { return true; }) || !nccl_stream_->AwaitEnd(*nccl_)) {
      std::fprintf(stderr, "lockstep: memory of a collective that does not end is not freed\n");
      return;
    }
    const std::lock_guard<std::mutex> lock(nccl_->mutex);
    if (handle_ != nullptr && nccl_->comm != nullptr) (void)nccl_->api.CommDeregister(nccl_->comm, handle_);
    (void)nccl_->api.MemFree(data());
  }

 private:
  void* const handle_;  // of the registration; null if there is none
  const std::shared_ptr<NcclHandle> nccl_;
  const std::shared_ptr<NcclStream> nccl_stream_;
};

namespace {

class PlainMemory final : public RegisteredMemory {
 public:
  PlainMemory(std::unique_ptr<DeviceMemory> memory, std::string why_copied)
      : RegisteredMemory(memory->data(), memory->bytes(), std::move(why_copied)), memory_(std::move(memory)) {}

 private:
  const std::unique_ptr<DeviceMemory> memory_;
};

}  // namespace

// --- Creation and destruction -------------------------------------------------------------------------------------

absl::StatusOr<std::unique_ptr<NcclCommunicator>> NcclCommunicator::Create(const NcclApi& api, Communicator& host,
                                                                           CudaDevice& device) {
  absl::StatusOr<std::shared_ptr<NcclStream>> nccl_stream = NcclStream::Create(device);
  RETURN_IF_ERROR(Agree(host, nccl_stream.status(), "making the stream of collectives"));
  return CreateOn(api, nullptr, host, device, *std::move(nccl_stream));
}

absl::StatusOr<std::unique_ptr<NcclCommunicator>> NcclCommunicator::CreateOn(const NcclApi& api,
                                                                             std::unique_ptr<Communicator> part,
                                                                             Communicator& host, CudaDevice& device,
                                                                             std::shared_ptr<NcclStream> nccl_stream) {
  std::unique_ptr<NcclCommunicator> made(
      new NcclCommunicator(api, std::move(part), host, device, std::move(nccl_stream)));
  RETURN_IF_ERROR(made->Join());
  return made;
}

NcclCommunicator::NcclCommunicator(const NcclApi& api, std::unique_ptr<Communicator> part, Communicator& host,
                                   CudaDevice& device, std::shared_ptr<NcclStream> nccl_stream)
    : Communicator(
          host.rank(), host.hosts(), "nccl",
          {.is_host = false, .reduces_in_rank_order = false, .timeout = host.timeout(), .recorder = host.recorder()}),
      own_(std::move(part)),
      host_(host),
      device_(device),
      nccl_stream_(std::move(nccl_stream)),
      nccl_(std::make_shared<NcclHandle>(api)) {
  nccl_stream_->Add(nccl_);
  watch_ = device_.stream()->AddWatch([this](absl::Duration waited) { return Watch(waited); });
}

NcclCommunicator::~NcclCommunicator() {
  if (!started_.empty())
    host_.Abort(FailedPrecondition() << "it destroyed its communicator with collectives in flight");
  const bool idle = nccl_stream_->AwaitIdle([this] { return host_.CheckPeers().ok(); });
  if (!idle && !host_.CheckPeers().ok()) nccl_stream_->AbortAll();
  nccl_->Abort();
  (void)nccl_stream_->AwaitEnd(*nccl_);
  device_.stream()->RemoveWatch(watch_);
  if (!device_.MakeCurrent().ok()) return;
  for (const auto& [id, entry] : started_) {
    if (entry.done != nullptr) idle_.push_back(entry.done);
  }
  if (computed_ != nullptr) idle_.push_back(computed_);
  for (CUevent event : idle_) (void)device_.api().EventDestroy(event);
}

absl::Status NcclCommunicator::Join() {
  // Rank 0's message: the id, or its error after the character '!'.
  std::string mine;
  if (rank() == 0) {
    ncclUniqueId id;
    const absl::Status status = nccl_->api.Check(nccl_->api.GetUniqueId(&id), "ncclGetUniqueId");
    mine = status.ok() ? std::string(id.internal.data(), id.internal.size()) : "!" + status.ToString();
  }
  ASSIGN_OR_RETURN(const std::vector<std::string> all, host_.AllGatherBytes(mine, "the id of NCCL's communicator"));
  ncclUniqueId id;
  if (all[0].size() != id.internal.size()) {
    return Internal() << "rank 0 on host " << host(0) << ": " << all[0].substr(std::min<size_t>(1, all[0].size()));
  }
  std::copy(all[0].begin(), all[0].end(), id.internal.begin());
  const absl::Status status = JoinAs(id);
  if (status.ok()) return status;
  Abort(status);  // peers wait for this rank in NCCL
  return host_.CheckPeers();
}

absl::Status NcclCommunicator::JoinAs(const ncclUniqueId& id) {
  RETURN_IF_ERROR(device_.MakeCurrent());
  const DriverApi& driver = device_.api();
  RETURN_IF_ERROR(device_.Check(driver.EventCreate(&computed_, CU_EVENT_DISABLE_TIMING), "cuEventCreate"));
  ncclConfig_t config;
  config.blocking = 0;  // a rank that dies now would otherwise block the others for ever
  ncclResult_t result;
  {
    const std::lock_guard<std::mutex> lock(nccl_->mutex);
    result = nccl_->api.CommInitRankConfig(&nccl_->comm, size(), id, rank(), &config);
  }
  if (result != ncclInProgress) RETURN_IF_ERROR(nccl_->api.Check(result, "ncclCommInitRankConfig"));
  return AwaitReady("ncclCommInitRankConfig");
}

// Waits until NCCL has completed the operation that it started in its own thread.
absl::Status NcclCommunicator::AwaitReady(std::string_view what) {
  const absl::Time begin = absl::Now(), busy = begin + absl::FromChrono(kNcclBusy);
  for (;;) {
    ncclResult_t state = ncclInProgress;
    {
      const std::lock_guard<std::mutex> lock(nccl_->mutex);
      if (nccl_->comm == nullptr) break;
      RETURN_IF_ERROR(nccl_->api.Check(nccl_->api.CommGetAsyncError(nccl_->comm, &state), what));
    }
    if (state != ncclInProgress) return nccl_->api.Check(state, what);
    if (absl::Now() < busy) {
      std::this_thread::yield();
      continue;
    }
    RETURN_IF_ERROR(host_.CheckPeers());
    if (absl::Now() - begin > timeout()) return Late(what);
    std::this_thread::sleep_for(kNcclRest);
  }
  RETURN_IF_ERROR(host_.CheckPeers());
  return FailedPrecondition() << what << ": NCCL's communicator was aborted";
}

// --- Failures -----------------------------------------------------------------------------------------------------

// Aborts the collectives of all communicators of this GPU, because each of them fails with the world. Returns `status`.
absl::Status NcclCommunicator::Failed(const absl::Status& status) {
  nccl_stream_->AbortAll();
  return status;
}

absl::Status NcclCommunicator::CheckNccl() {
  // A communicator from Split whose world is destroyed may not notice that its GPU's work was aborted, too.
  if (nccl_->aborted())
    return FailedPrecondition() << "NCCL's communicator was aborted together with another one of its GPU";
  ncclResult_t state = ncclSuccess;
  const std::lock_guard<std::mutex> lock(nccl_->mutex);
  if (nccl_->comm == nullptr) return absl::OkStatus();
  const ncclResult_t result = nccl_->api.CommGetAsyncError(nccl_->comm, &state);
  if (result == ncclSuccess && (state == ncclSuccess || state == ncclInProgress)) return absl::OkStatus();
  return nccl_->api.Check(result == ncclSuccess ? state : result, "a collective that was in flight");
}

absl::Status NcclCommunicator::CheckPeers() {
  const absl::Status status = host_.CheckPeers();
  return status.ok() ? status : Failed(status);
}

absl::Status NcclCommunicator::Watch(absl::Duration waited) {
  RETURN_IF_ERROR(CheckPeers());
  const absl::Status status = CheckNccl();
  if (!status.ok()) {
    Abort(status);
    return host_.CheckPeers();  // of several errors, the first counts
  }
  return waited > timeout() ? Late(kLate) : absl::OkStatus();
}

// Handles a wait of the device, or of NCCL, that is too long. Other waiting ranks come here, too. The hosts'
// communicator names the rank that does not, which is the culprit.
absl::Status NcclCommunicator::Late(std::string_view what) {
  absl::Status status = host_.Barrier(kLate);
  if (status.ok()) {
    status = ErrorStream(absl::StatusCode::kDeadlineExceeded)
             << what << ": all ranks have waited for " << absl::FormatDuration(timeout());
    host_.Abort(status);
    status = host_.CheckPeers();
  }
  return Failed(status);
}

void NcclCommunicator::Abort(const absl::Status& cause) {
  host_.Abort(cause);
  nccl_stream_->AbortAll();
}

// --- Collectives --------------------------------------------------------------------------------------------------

absl::StatusOr<std::unique_ptr<RegisteredMemory>> NcclCommunicator::Allocate(size_t bytes, std::string_view label) {
  RETURN_IF_ERROR(CheckPeers());
  const absl::Status all = host_.Allocate(0, label).status();  // a collective call: all ranks make it
  if (!all.ok()) return Failed(all);
  RETURN_IF_ERROR(device_.MakeCurrent());
  void* data = nullptr;
  void* handle = nullptr;
  absl::Status done;
  const size_t wanted = std::max<size_t>(bytes, 1);
  {
    const std::lock_guard<std::mutex> lock(nccl_->mutex);
    if (nccl_->comm == nullptr) return FailedPrecondition() << label << ": NCCL's communicator was aborted";
    done = nccl_->api.Check(nccl_->api.MemAlloc(&data, wanted), "ncclMemAlloc");
    if (!done.ok()) data = nullptr;
    else done = nccl_->api.Check(nccl_->api.CommRegister(nccl_->comm, data, wanted, &handle), "ncclCommRegister");
    if (!done.ok()) handle = nullptr;
  }
  std::string why_copied(done.message());
  if (done.ok() && handle == nullptr) why_copied = "ncclCommRegister registers nothing, as with NCCL_LOCAL_REGISTER=0";
  if (data == nullptr) {
    ASSIGN_OR_RETURN(std::unique_ptr<DeviceMemory> memory, device_.Allocate(bytes, label));
    return std::make_unique<PlainMemory>(std::move(memory), std::move(why_copied));
  }
  auto memory = std::make_unique<Memory>(static_cast<std::byte*>(data), bytes, handle, std::move(why_copied), nccl_,
                                         nccl_stream_);
  const DriverApi& driver = device_.api();
  RETURN_IF_ERROR(
      device_.Check(driver.MemsetD8Async(reinterpret_cast<CUdeviceptr>(data), 0, wanted, device_.stream()->handle()),
                    "cuMemsetD8Async"));
  return memory;
}

absl::StatusOr<std::unique_ptr<RegisteredMemory>> NcclCommunicator::AllocateShared(size_t, std::string_view label) {
  return FailedPrecondition() << "`" << label << "`: the memory of " << device_.name()
                              << " cannot be shared between ranks";
}

absl::StatusOr<CUevent> NcclCommunicator::TakeEvent() {
  CUevent event = nullptr;
  if (!idle_.empty()) {
    event = idle_.back();
    idle_.pop_back();
    return event;
  }
  RETURN_IF_ERROR(device_.MakeCurrent());
  const DriverApi& driver = device_.api();
  RETURN_IF_ERROR(device_.Check(driver.EventCreate(&event, CU_EVENT_DISABLE_TIMING), "cuEventCreate"));
  return event;
}

absl::StatusOr<Communicator::Ticket> NcclCommunicator::Start(const Collective& collective, const void* input,
                                                             void* output, const Call& call) {
  RETURN_IF_ERROR(CheckOperands(collective, input, output, call, rank(), size()));
  NcclReduction reduction = {};
  if (TraitsOf(collective.op).reduces) {
    ASSIGN_OR_RETURN(reduction, ReductionOf(collective.dtype, collective.kind, call.label));
  }
  if (!call.compared_only && call.stream != device_.stream()) {
    return InvalidArgument() << "`" << call.label << "` was started in another stream than that of " << device_.name();
  }
  RETURN_IF_ERROR(CheckPeers());
  ASSIGN_OR_RETURN(const bool captures, Captures());
  StartedCollective started{.of_host = {}, .done = nullptr, .captured = captures && !call.compared_only};
  if (!started.captured) {
    // A call of the hosts that is only compared.
    Call on_host = call;
    on_host.stream = nullptr;
    on_host.compared_only = true;
    const absl::StatusOr<Ticket> of_host = host_.Start(collective, nullptr, nullptr, on_host);
    if (!of_host.ok()) return Failed(of_host.status());
    started.of_host = *of_host;
  }
  const Ticket ticket{next_ticket_++};
  StartedCollective& entry = started_[ticket.id] = started;
  if (call.compared_only || collective.count() == 0) return ticket;
  absl::Status status;
  absl::StatusOr<CUevent> done = TakeEvent();
  if (done.ok()) {
    entry.done = *done;
    const std::string what = Describe(DescriptionOf(collective, call), std::string(call.label));
    status = StartOnDevice([&](ncclComm_t comm) { return Enqueue(collective, reduction, input, output, comm); }, what,
                           *done);
  } else {
    status = done.status();
  }
  if (status.ok()) return ticket;
  if (!entry.captured) Abort(status);  // the peers' collectives have started
  return status;
}

absl::StatusOr<bool> NcclCommunicator::Captures() {
  RETURN_IF_ERROR(device_.MakeCurrent());
  CUstreamCaptureStatus captures = CU_STREAM_CAPTURE_STATUS_NONE;
  const DriverApi& driver = device_.api();
  RETURN_IF_ERROR(
      device_.Check(driver.StreamIsCapturing(device_.stream()->handle(), &captures), "cuStreamIsCapturing"));
  return captures != CU_STREAM_CAPTURE_STATUS_NONE;
}

void NcclCommunicator::AddGraph(const std::shared_ptr<LaunchableGraph>& graph) { nccl_->AddGraph(graph); }

void NcclCommunicator::DropCaptured() {
  for (auto it = started_.begin(); it != started_.end();) {
    if (!it->second.captured) {
      ++it;
      continue;
    }
    if (it->second.done != nullptr) idle_.push_back(it->second.done);
    it = started_.erase(it);
  }
}

absl::Status NcclCommunicator::StartOnDevice(absl::FunctionRef<ncclResult_t(ncclComm_t)> enqueue, std::string_view what,
                                             CUevent done) {
  RETURN_IF_ERROR(device_.MakeCurrent());
  RETURN_IF_ERROR(device_.WaitForQueueSpace());
  const DriverApi& driver = device_.api();
  RETURN_IF_ERROR(device_.Check(driver.EventRecord(computed_, device_.stream()->handle()), "cuEventRecord"));
  RETURN_IF_ERROR(device_.Check(driver.StreamWaitEvent(nccl_stream_->stream(), computed_, CU_EVENT_WAIT_DEFAULT),
                                "cuStreamWaitEvent"));
  ncclResult_t result;
  {
    const std::lock_guard<std::mutex> lock(nccl_->mutex);
    if (nccl_->comm == nullptr) return FailedPrecondition() << what << ": NCCL's communicator was aborted";
    result = enqueue(nccl_->comm);
  }
  if (result == ncclInProgress) RETURN_IF_ERROR(AwaitReady(what));
  else RETURN_IF_ERROR(nccl_->api.Check(result, what));
  return driver.Check(driver.EventRecord(done, nccl_stream_->stream()), "cuEventRecord");
}

ncclResult_t NcclCommunicator::Clear(void* output, size_t bytes) {
  const CUresult result =
      device_.api().MemsetD8Async(reinterpret_cast<CUdeviceptr>(output), 0, bytes, nccl_stream_->stream());
  return result == CUDA_SUCCESS ? ncclSuccess : ncclUnhandledCudaError;
}

namespace {

// NCCL calls for the pieces of a bucket, or between ranks, which NCCL launches together.
class CallGroup {
 public:
  // A single call needs no group.
  explicit CallGroup(const NcclApi& api, bool is_group = true)
      : api_(api), is_group_(is_group), result_(is_group ? api.GroupStart() : ncclSuccess) {}
  void Add(ncclResult_t result) {
    if (result_ == ncclSuccess && !(is_group_ && result == ncclInProgress)) result_ = result;
  }
  // Ends the group and returns its result, or the first error of a call. Call it once, also after an error.
  ncclResult_t End() {
    const ncclResult_t ended = is_group_ ? api_.GroupEnd() : result_;
    return result_ == ncclSuccess ? ended : result_;
  }

 private:
  const NcclApi& api_;
  const bool is_group_;
  ncclResult_t result_;
};

const std::byte* At(const void* operand, size_t offset) { return static_cast<const std::byte*>(operand) + offset; }
std::byte* At(void* operand, size_t offset) { return static_cast<std::byte*>(operand) + offset; }

}  // namespace

ncclResult_t NcclCommunicator::Enqueue(const Collective& c, const NcclReduction& r, const void* input, void* output,
                                       ncclComm_t comm) {
  const NcclApi& api = nccl_->api;
  const CUstream stream = nccl_stream_->stream();
  const auto count = static_cast<size_t>(c.counts[0]);
  const size_t bytes = count * SizeOf(c.dtype);
  if (GetsNothing(c, rank())) {
    const ncclResult_t cleared = Clear(output, OutputBytes(c, size()));
    if (cleared != ncclSuccess) return cleared;
  }
  switch (c.op) {
    case CollectiveOp::kAllReduce: return api.AllReduce(input, output, count, r.type, r.op, comm, stream);
    case CollectiveOp::kBroadcast:
      return api.Broadcast(rank() == c.root ? input : output, output, bytes, ncclUint8, c.root, comm, stream);
    case CollectiveOp::kAllGather:
    case CollectiveOp::kReduceScatter: {
      CallGroup group(api, c.counts.size() > 1);
      for (const Piece& piece : PiecesOf(c, size())) {
        if (piece.count == 0) continue;
        const void* const from = At(input, piece.input_begin);
        void* const to = At(output, piece.output_begin);
        const auto elements = static_cast<size_t>(piece.count);
        group.Add(c.op == CollectiveOp::kAllGather
                      ? api.AllGather(from, to, elements * SizeOf(c.dtype), ncclUint8, comm, stream)
                      : api.ReduceScatter(from, to, elements, r.type, r.op, comm, stream));
      }
      return group.End();
    }
    case CollectiveOp::kAllToAll:
    case CollectiveOp::kPermute:
    case CollectiveOp::kGather:
    case CollectiveOp::kScatter: break;  // messages from rank to rank, below
    case CollectiveOp::kBarrier:
    case CollectiveOp::kAllocate: return ncclSuccess;  // they move nothing
  }
  CallGroup group(api);
  const auto send = [&](int peer, size_t at) {
    group.Add(api.Send(At(input, at), bytes, ncclUint8, peer, comm, stream));
  };
  const auto receive = [&](int peer, size_t at) {
    group.Add(api.Recv(At(output, at), bytes, ncclUint8, peer, comm, stream));
  };
  for (const RankPair& pair : c.pairs) {
    if (pair.source == rank()) send(pair.target, 0);
    if (pair.target == rank()) receive(pair.source, 0);
  }
  const CollectiveTraits traits = TraitsOf(c.op);
  for (int peer = 0; peer < size() && !traits.permutes; ++peer) {
    const size_t at = static_cast<size_t>(peer) * bytes;
    if (traits.from_root ? rank() == c.root : !traits.to_root || peer == c.root) send(peer, traits.scatters ? at : 0);
    if (traits.to_root ? rank() == c.root : !traits.from_root || peer == c.root) receive(peer, traits.gathers ? at : 0);
  }
  return group.End();
}

absl::Status NcclCommunicator::Wait(Ticket ticket, Stream* stream) {
  const auto found = started_.find(ticket.id);
  if (found == started_.end()) return FailedPrecondition() << "ticket " << ticket.id << " is not in flight";
  const StartedCollective entry = found->second;
  if (entry.done != nullptr && stream != device_.stream()) {
    return InvalidArgument() << "a wait in another stream than " << device_.name() << "'s";
  }
  started_.erase(found);
  if (entry.done != nullptr) idle_.push_back(entry.done);
  if (!entry.captured) {
    const absl::Status agreed = host_.Wait(entry.of_host);
    if (!agreed.ok()) return Failed(agreed);
  }
  if (entry.done == nullptr) return absl::OkStatus();
  const DriverApi& driver = device_.api();
  RETURN_IF_ERROR(device_.MakeCurrent());
  return device_.Check(driver.StreamWaitEvent(device_.stream()->handle(), entry.done, CU_EVENT_WAIT_DEFAULT),
                       "cuStreamWaitEvent");
}

// --- Calls of the hosts' communicator -----------------------------------------------------------------------------

absl::Status NcclCommunicator::Barrier(std::string_view label) {
  const absl::Status status = host_.Barrier(label);
  return status.ok() ? status : Failed(status);
}

absl::StatusOr<std::vector<std::string>> NcclCommunicator::AllGatherBytes(std::string_view bytes,
                                                                          std::string_view label) {
  absl::StatusOr<std::vector<std::string>> all = host_.AllGatherBytes(bytes, label);
  if (!all.ok()) return Failed(all.status());
  return all;
}

absl::StatusOr<std::unique_ptr<Communicator>> NcclCommunicator::Split(int color, std::string_view label) {
  absl::StatusOr<std::unique_ptr<Communicator>> part = host_.Split(color, label);
  if (!part.ok()) return Failed(part.status());
  Communicator& host = **part;
  return CreateOn(nccl_->api, *std::move(part), host, device_, nccl_stream_);
}

}  // namespace lockstep::cuda
