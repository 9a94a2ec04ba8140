// The functions of the fake NCCL, as declared in nccl.h.

#include "runtime/cuda/nccl.h"

#include <algorithm>
#include <chrono>
#include <string>
#include <utility>

#include "test/fake_cuda/nccl_comm.h"

#define LOCKSTEP_FAKE extern "C" __attribute__((visibility("default")))

namespace lockstep::cuda {

LOCKSTEP_FAKE ncclResult_t ncclGetVersion(int* version) {
  *version = 22703;
  return ncclSuccess;
}

LOCKSTEP_FAKE const char* ncclGetErrorString(ncclResult_t) { return "an error of the fake NCCL"; }
LOCKSTEP_FAKE const char* ncclGetLastError(ncclComm_t) { return ""; }

LOCKSTEP_FAKE ncclResult_t ncclGetUniqueId(ncclUniqueId* id) {
  Fake& fake = TheFake();
  const std::lock_guard lock(fake.mutex);
  const ncclResult_t failure = fake.Note("ncclGetUniqueId");
  if (failure != ncclSuccess) return failure;
  id->internal = {};
  const std::string text = NcclWorld::MakeId();
  std::copy(text.begin(), text.end(), id->internal.begin());
  return ncclSuccess;
}

LOCKSTEP_FAKE ncclResult_t ncclCommInitRankConfig(ncclComm_t* comm, int ranks, ncclUniqueId id, int rank,
                                                  ncclConfig_t* config) {
  Fake& fake = TheFake();
  const int gpu = TheDriver().fake->CurrentGpu();
  const std::lock_guard lock(fake.mutex);
  const ncclResult_t failure = fake.Note("ncclCommInitRankConfig " + std::to_string(rank));
  if (failure != ncclSuccess) return failure;
  if (config->size != sizeof(ncclConfig_t) || config->magic != kNcclConfigMagic) return ncclInvalidArgument;
  if (config->blocking != 0) return fake.Wrong("a communicator that blocks");
  if (gpu < 0) return fake.Wrong("a communicator without a GPU");
  auto made = std::make_shared<ncclComm>();
  made->id = id.internal.data();
  made->world = NcclWorld::Open(made->id, ranks);
  if (made->world != nullptr && !made->world->Join(rank, gpu)) return fake.Wrong("a rank that has already joined");
  made->rank = rank;
  made->gpu = gpu;
  made->ranks = ranks;
  fake.comms[made.get()] = made;
  *comm = made.get();
  return ncclInProgress;
}

LOCKSTEP_FAKE ncclResult_t ncclCommGetAsyncError(ncclComm_t comm, ncclResult_t* error) {
  Fake& fake = TheFake();
  const std::lock_guard lock(fake.mutex);
  if (!fake.IsLive(comm)) return fake.Wrong("ncclCommGetAsyncError of a communicator that is gone");
  *error = fake.async_error;
  const bool is_refused = comm->world != nullptr && comm->world->shares_a_gpu() && !fake.may_share_gpus;
  if (is_refused) *error = ncclInvalidUsage;  // "Duplicate GPU detected"
  else if (!comm->joined()) *error = ncclInProgress;
  if (*error == ncclSuccess && comm->launches) *error = ncclInProgress;
  return ncclSuccess;
}

// Like NVIDIA's, it waits for graphs that contain collectives of the communicator, and frees memory, which waits for
// all work in the GPU's streams, also that of other communicators. If a graph that can be launched contains them, the
// order is wrong: NVIDIA's would wait for ever if the same thread destroys the graph later.
LOCKSTEP_FAKE ncclResult_t ncclCommAbort(ncclComm_t comm) {
  Fake& fake = TheFake();
  std::unique_lock lock(fake.mutex);
  (void)fake.Note("ncclCommAbort");
  if (!fake.IsLive(comm)) return fake.Wrong("ncclCommAbort of a communicator that is gone");
  const std::shared_ptr<ncclComm> kept = fake.comms[comm];
  if (TheDriver().fake->IsInGraph(comm)) (void)fake.Wrong("ncclCommAbort before the graphs with its collectives end");
  kept->aborted = true;
  if (kept->world != nullptr) kept->world->Wake();
  NcclWorld::DropId(kept->id);
  while (kept->active > 0 || kept->launches || kept->captured > 0)
    fake.changed.wait_for(lock, std::chrono::milliseconds(1));
  lock.unlock();
  TheDriver().fake->AwaitIdle(kept->gpu);
  lock.lock();
  fake.comms.erase(comm);
  return ncclSuccess;
}

LOCKSTEP_FAKE ncclResult_t ncclAllReduce(const void* input, void* output, size_t count, ncclDataType_t type,
                                         ncclRedOp_t op, ncclComm_t comm, CUstream stream) {
  return EnqueueCollective("ncclAllReduce", comm, {Collective::Kind::kAllReduce, count, type, op, 0}, input, output,
                           stream);
}
LOCKSTEP_FAKE ncclResult_t ncclBroadcast(const void* input, void* output, size_t count, ncclDataType_t type, int root,
                                         ncclComm_t comm, CUstream stream) {
  return EnqueueCollective("ncclBroadcast", comm, {Collective::Kind::kBroadcast, count, type, ncclSum, root}, input,
                           output, stream);
}
LOCKSTEP_FAKE ncclResult_t ncclAllGather(const void* input, void* output, size_t count, ncclDataType_t type,
                                         ncclComm_t comm, CUstream stream) {
  return EnqueueCollective("ncclAllGather", comm, {Collective::Kind::kAllGather, count, type, ncclSum, 0}, input,
                           output, stream);
}
LOCKSTEP_FAKE ncclResult_t ncclReduceScatter(const void* input, void* output, size_t count, ncclDataType_t type,
                                             ncclRedOp_t op, ncclComm_t comm, CUstream stream) {
  return EnqueueCollective("ncclReduceScatter", comm, {Collective::Kind::kReduceScatter, count, type, op, 0}, input,
                           output, stream);
}

LOCKSTEP_FAKE ncclResult_t ncclSend(const void* input, size_t count, ncclDataType_t type, int peer, ncclComm_t comm,
                                    CUstream stream) {
  return EnqueueMessage("ncclSend", comm, {true, peer, count, type}, input, stream);
}
LOCKSTEP_FAKE ncclResult_t ncclRecv(void* output, size_t count, ncclDataType_t type, int peer, ncclComm_t comm,
                                    CUstream stream) {
  return EnqueueMessage("ncclRecv", comm, {false, peer, count, type}, output, stream);
}
LOCKSTEP_FAKE ncclResult_t ncclGroupStart() { return StartGroup(); }
LOCKSTEP_FAKE ncclResult_t ncclGroupEnd() { return EndGroup(); }

LOCKSTEP_FAKE ncclResult_t ncclMemAlloc(void** memory, size_t bytes) {
  Fake& fake = TheFake();
  const std::lock_guard lock(fake.mutex);
  const ncclResult_t failure = fake.Note("ncclMemAlloc " + std::to_string(bytes));
  if (failure != ncclSuccess) return failure;
  CUdeviceptr address = 0;
  if (TheDriver().mem_alloc(&address, bytes) != CUDA_SUCCESS) return ncclUnhandledCudaError;
  *memory = reinterpret_cast<void*>(address);
  fake.memory[*memory] = bytes;
  return ncclSuccess;
}

LOCKSTEP_FAKE ncclResult_t ncclMemFree(void* memory) {
  Fake& fake = TheFake();
  const std::lock_guard lock(fake.mutex);
  (void)fake.Note("ncclMemFree");
  if (fake.memory.erase(memory) == 0) return fake.Wrong("ncclMemFree of memory that is not from ncclMemAlloc");
  for (const auto& [comm, kept] : fake.comms) {
    if (kept->registered.count(memory) == 1) return fake.Wrong("ncclMemFree of memory that is registered");
  }
  const CUresult result = TheDriver().mem_free(reinterpret_cast<CUdeviceptr>(memory));
  return result == CUDA_SUCCESS ? ncclSuccess : ncclUnhandledCudaError;
}

LOCKSTEP_FAKE ncclResult_t ncclCommRegister(ncclComm_t comm, void* memory, size_t bytes, void** handle) {
  Fake& fake = TheFake();
  const std::lock_guard lock(fake.mutex);
  const ncclResult_t failure = fake.Note("ncclCommRegister " + std::to_string(bytes));
  if (failure != ncclSuccess) return failure;
  if (!fake.IsLive(comm)) return fake.Wrong("ncclCommRegister with a communicator that is gone");
  if (fake.memory.count(memory) == 0) return ncclInvalidArgument;
  *handle = fake.may_register ? memory : nullptr;
  if (fake.may_register) comm->registered.insert(memory);
  return ncclSuccess;
}

LOCKSTEP_FAKE ncclResult_t ncclCommDeregister(ncclComm_t comm, void* handle) {
  Fake& fake = TheFake();
  const std::lock_guard lock(fake.mutex);
  (void)fake.Note("ncclCommDeregister");
  if (!fake.IsLive(comm)) return fake.Wrong("ncclCommDeregister of a communicator that is gone");
  if (comm->registered.erase(handle) == 0) return fake.Wrong("ncclCommDeregister of a buffer that is not registered");
  return ncclSuccess;
}

LOCKSTEP_FAKE FakeNccl* lockstep_fake_nccl() { return &TheFake(); }

}  // namespace lockstep::cuda
