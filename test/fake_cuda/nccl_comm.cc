#include "test/fake_cuda/nccl_comm.h"

#include <chrono>
#include <sstream>
#include <thread>

#include "test/fake_cuda/nccl_reduce.h"

namespace lockstep::cuda {
namespace {

// Part of a collective's work, of which graphs keep copies; it goes with the last of them.
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

// In a stream: waits for the peers, or for an abort.
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
    (void)fake.Wrong(in_bytes > NcclWorld::kMaxBytes ? "a collective of more than the fake has room for"
                                                     : "a collective touches what is no memory of a GPU");
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

// In a thread of its own. Where the stream captures it exchanges addresses with its peers, and so waits for them.
void Launch(const char* name, const std::shared_ptr<ncclComm>& comm, const Collective& c, CUdeviceptr input,
            CUdeviceptr output, CUstream stream) {
  constexpr auto kRest = std::chrono::microseconds(100);
  Fake& fake = TheFake();
  std::unique_lock lock(fake.mutex);
  const bool never = fake.Interrupt("launch") == ncclInProgress;
  lock.unlock();
  while (never && !comm->aborted) std::this_thread::sleep_for(kRest);
  if (!comm->aborted) {
    const auto captured = std::make_shared<Captured>(comm);
    const bool captures = TheDriver().fake->Enqueue(
        stream, name, [comm, captured, c, input, output] { return Run(comm, c, input, output); });
    if (captures) captured->Count(), comm->world->HaveCaptured(comm->rank);
    while (captures && !comm->aborted && !comm->world->AllHaveCaptured(comm->rank)) {
      std::this_thread::sleep_for(kRest);
    }
  }
  lock.lock();
  comm->launches = false;
  fake.changed.notify_all();
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
  const ncclResult_t failure = fake.Note(text.str());
  if (failure != ncclSuccess) return failure;
  if (!fake.IsLive(comm)) return fake.Wrong(text.str() + " of a communicator that is gone");
  if (comm->launches || !comm->joined()) {
    return fake.Wrong(text.str() + " while an earlier call is in progress");
  }
  if (c.type >= 10 || c.count == 0 || c.root < 0 || c.root >= comm->ranks) return ncclInvalidArgument;
  comm->launches = true;
  std::thread(Launch, name, fake.comms[comm], c, reinterpret_cast<CUdeviceptr>(input),
              reinterpret_cast<CUdeviceptr>(output), stream)
      .detach();
  return ncclInProgress;
}

}  // namespace lockstep::cuda
