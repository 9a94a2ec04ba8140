#include "test/fake_cuda/nccl_comm.h"

#include <chrono>
#include <sstream>
#include <thread>

#include "test/fake_cuda/nccl_reduce.h"

namespace lockstep::cuda {
namespace {

// Counts a collective while graphs keep copies of its work; destroyed with the last copy.
class Captured {
 public:
  explicit Captured(std::shared_ptr<ncclComm> comm) : comm_(std::move(comm)) {}
  ~Captured() {
    if (counted_) --comm_->captured;
  }
  Captured(const Captured&) = delete;
  Captured& operator=(const Captured&) = delete;
  void Count() { counted_ = true, ++comm_->captured; }

 private:
  const std::shared_ptr<ncclComm> comm_;
  bool counted_ = false;
};

// Runs in a stream: waits for the peers, or for an abort.
CUresult Run(const std::shared_ptr<ncclComm>& comm, const Collective& c, CUdeviceptr input, CUdeviceptr output) {
  Fake& fake = TheFake();
  const FakeDriver& driver = *TheDriver().fake;
  const bool reads = c.kind != Collective::Kind::kBroadcast || c.root == comm->rank;
  const size_t in_bytes = reads ? InputBytes(c, comm->ranks) : 0;
  const std::byte* const in = driver.Find(input, in_bytes);
  std::byte* const out = driver.Find(output, OutputBytes(c, comm->ranks));
  std::unique_lock lock(fake.mutex);
  if (comm->aborted) return CUDA_SUCCESS;
  if ((reads && in == nullptr) || out == nullptr || in_bytes > NcclWorld::kMaxBytes) {
    (void)fake.Wrong(in_bytes > NcclWorld::kMaxBytes ? "a collective larger than the fake's limit"
                                                     : "a collective uses an address outside the GPUs' memory");
    return CUDA_ERROR_ILLEGAL_ADDRESS;
  }
  const uint64_t number = comm->ran++;
  ++comm->active;
  lock.unlock();
  const std::vector<const std::byte*> inputs = comm->world->Meet(comm->rank, number, c, in, in_bytes, comm->aborted);
  if (!inputs.empty()) Compute(c, comm->rank, inputs, out);
  lock.lock();
  --comm->active;
  fake.changed.notify_all();
  return CUDA_SUCCESS;
}

// Work that a call adds to a stream.
struct Work {
  std::string name;
  std::function<CUresult()> run;
};

// A group between its start and its end.
struct Group {
  bool is_open = false;
  std::shared_ptr<ncclComm> comm;  // of all its calls; null: no calls yet
  CUstream stream = nullptr;
  std::vector<Work> collectives;
  std::vector<std::pair<Message, CUdeviceptr>> messages;
};
thread_local Group group;

// Runs in a thread of its own. If the stream captures, a collective exchanges addresses with its peers and so waits for
// them.
void Launch(const std::shared_ptr<ncclComm>& comm, const std::vector<Work>& works, bool meets_all, CUstream stream) {
  constexpr auto kRest = std::chrono::microseconds(100);
  Fake& fake = TheFake();
  std::unique_lock lock(fake.mutex);
  const bool never = fake.Interrupt("launch") == ncclInProgress;
  lock.unlock();
  while (never && !comm->aborted) std::this_thread::sleep_for(kRest);
  for (const Work& work : works) {
    if (comm->aborted) break;
    const auto captured = std::make_shared<Captured>(comm);
    const bool captures =
        TheDriver().fake->Enqueue(stream, work.name, [run = work.run, captured] { return run(); }, comm.get());
    if (captures) captured->Count();
    if (captures && meets_all) comm->world->HaveCaptured(comm->rank);
    while (captures && meets_all && !comm->aborted && !comm->world->AllHaveCaptured(comm->rank)) {
      std::this_thread::sleep_for(kRest);
    }
  }
  lock.lock();
  comm->launches = false;
  fake.changed.notify_all();
}

// Runs in a stream: sends all messages, then receives those of the peers.
CUresult RunMessages(const std::shared_ptr<ncclComm>& comm,
                     const std::vector<std::pair<Message, CUdeviceptr>>& messages) {
  Fake& fake = TheFake();
  const FakeDriver& driver = *TheDriver().fake;
  std::unique_lock lock(fake.mutex);
  if (comm->aborted) return CUDA_SUCCESS;
  for (const auto& [message, address] : messages) {
    const size_t bytes = message.count * BytesOf(message.type);
    if (driver.Find(address, bytes) != nullptr && bytes <= NcclWorld::kMaxMessage) continue;
    (void)fake.Wrong(bytes > NcclWorld::kMaxMessage ? "a message larger than the fake's limit"
                                                    : "a message uses an address outside the GPUs' memory");
    return CUDA_ERROR_ILLEGAL_ADDRESS;
  }
  ++comm->active;
  lock.unlock();
  for (const bool sent : {true, false}) {
    for (const auto& [message, address] : messages) {
      if (message.is_sent != sent) continue;
      const size_t bytes = message.count * BytesOf(message.type);
      std::byte* const data = driver.Find(address, bytes);
      if (sent) (void)comm->world->Send(comm->rank, message.peer, data, bytes, comm->aborted);
      else (void)comm->world->Receive(comm->rank, message.peer, data, bytes, comm->aborted);
    }
  }
  lock.lock();
  --comm->active;
  fake.changed.notify_all();
  return CUDA_SUCCESS;
}

// The caller holds the fake's mutex.
ncclResult_t StartLaunch(std::shared_ptr<ncclComm> comm, std::vector<Work> works, bool meets_all, CUstream stream) {
  comm->launches = true;
  std::thread(Launch, std::move(comm), std::move(works), meets_all, stream).detach();
  return ncclInProgress;
}

// Checks common to all calls. The caller holds the fake's mutex.
ncclResult_t CheckCall(Fake& fake, const std::string& text, ncclComm_t comm, CUstream stream) {
  const ncclResult_t failure = fake.Note(text);
  if (failure != ncclSuccess) return failure;
  if (!fake.IsLive(comm)) return fake.Wrong(text + " of a communicator that is gone");
  if (comm->launches || !comm->joined()) return fake.Wrong(text + " while an earlier call is in progress");
  if (!group.is_open) return ncclSuccess;
  if (group.comm != nullptr && (group.comm.get() != comm || group.stream != stream)) {
    return fake.Wrong(text + " in a group of another communicator or stream");
  }
  group.comm = fake.comms[comm];
  group.stream = stream;
  return ncclSuccess;
}

}  // namespace

Fake& TheFake() {
  static Fake* const fake = new Fake;
  return *fake;
}

ncclResult_t EnqueueCollective(const char* name, ncclComm_t comm, const Collective& c, const void* input, void* output,
                               CUstream stream) {
  Fake& fake = TheFake();
  std::unique_lock lock(fake.mutex);
  std::ostringstream text;
  text << name << " " << c.count << " type " << c.type << " op " << c.op;
  const ncclResult_t failure = CheckCall(fake, text.str(), comm, stream);
  if (failure != ncclSuccess) return failure;
  if (c.type >= 10 || c.count == 0 || c.root < 0 || c.root >= comm->ranks) return ncclInvalidArgument;
  Work work{name, [comm = fake.comms[comm], c, in = reinterpret_cast<CUdeviceptr>(input),
                   out = reinterpret_cast<CUdeviceptr>(output)] { return Run(comm, c, in, out); }};
  if (!group.is_open) return StartLaunch(fake.comms[comm], {std::move(work)}, /*meets_all=*/true, stream);
  group.collectives.push_back(std::move(work));
  return ncclSuccess;
}

ncclResult_t EnqueueMessage(const char* name, ncclComm_t comm, const Message& message, const void* data,
                            CUstream stream) {
  Fake& fake = TheFake();
  std::unique_lock lock(fake.mutex);
  std::ostringstream text;
  text << name << " " << message.count << " type " << message.type << " peer " << message.peer;
  if (!group.is_open) return fake.Wrong(text.str() + " outside of a group");
  const ncclResult_t failure = CheckCall(fake, text.str(), comm, stream);
  if (failure != ncclSuccess) return failure;
  if (message.type >= 10 || message.peer < 0 || message.peer >= comm->ranks) return ncclInvalidArgument;
  group.messages.emplace_back(message, reinterpret_cast<CUdeviceptr>(data));
  return ncclSuccess;
}

ncclResult_t StartGroup() {
  Fake& fake = TheFake();
  const std::lock_guard lock(fake.mutex);
  const ncclResult_t failure = fake.Note("ncclGroupStart");
  if (failure != ncclSuccess) return failure;
  if (group.is_open) return fake.Wrong("ncclGroupStart in a group");
  group.is_open = true;
  return ncclSuccess;
}

ncclResult_t EndGroup() {
  Fake& fake = TheFake();
  const std::lock_guard lock(fake.mutex);
  const ncclResult_t failure = fake.Note("ncclGroupEnd");
  if (!group.is_open) return failure != ncclSuccess ? failure : fake.Wrong("ncclGroupEnd outside of a group");
  Group ended = std::exchange(group, {});
  if (failure != ncclSuccess) return failure;
  if (ended.comm == nullptr) return ncclSuccess;
  const bool meets_all = ended.messages.empty();
  if (!meets_all) {
    ended.collectives.push_back({"messages", [comm = ended.comm, messages = std::move(ended.messages)] {
                                   return RunMessages(comm, messages);
                                 }});
  }
  return StartLaunch(std::move(ended.comm), std::move(ended.collectives), meets_all, ended.stream);
}

}  // namespace lockstep::cuda
