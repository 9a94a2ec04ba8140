// The communicators of the fake NCCL, and the work that they add to streams. Only for the fake NCCL.

#pragma once

#include <atomic>
#include <condition_variable>
#include <functional>
#include <map>
#include <memory>
#include <mutex>
#include <set>
#include <string>
#include <utility>
#include <vector>

#include "test/fake_cuda/driver_of_folder.h"
#include "test/fake_cuda/fake_nccl.h"
#include "test/fake_cuda/nccl_world.h"

namespace lockstep::cuda {

struct ncclComm {
  std::string id;
  std::shared_ptr<NcclWorld> world;  // null: the process that made the id is gone, so no rank can join
  int rank = 0;
  int ranks = 0;
  std::atomic<bool> aborted{false};
  bool launches = false;  // a separate thread is adding a collective to its stream
  uint64_t ran = 0;
  int active = 0;                // running collectives
  std::atomic<int> captured{0};  // collectives that graphs contain
  int gpu = 0;
  std::set<void*> registered;

  bool joined() const { return world != nullptr && world->complete(); }
};

// All communicators of this process, under one mutex. A thread that holds it takes the driver's mutex only briefly, and
// never waits for peers.
class Fake final : public FakeNccl {
 public:
  void OnCall(std::string_view function, int nth, std::function<ncclResult_t()> first) override {
    const std::lock_guard lock(mutex);
    interruptions_[std::string(function)].emplace_back(nth, std::move(first));
  }
  void SetAsyncError(ncclResult_t result) override {
    const std::lock_guard lock(mutex);
    async_error = result;
  }
  void LetRanksShareGpus(bool may) override {
    const std::lock_guard lock(mutex);
    may_share_gpus = may;
  }
  void LetBuffersBeRegistered(bool may) override {
    const std::lock_guard lock(mutex);
    may_register = may;
  }
  std::vector<std::string> TakeCalls() override {
    const std::lock_guard lock(mutex);
    return std::exchange(calls_, {});
  }
  int live() const override {
    const std::lock_guard lock(mutex);
    return static_cast<int>(comms.size());
  }

  // The caller holds the mutex.
  ncclResult_t Note(const std::string& call) {
    calls_.push_back(call);
    return Interrupt(call.substr(0, call.find(' ')));
  }
  ncclResult_t Interrupt(const std::string& function) {
    ncclResult_t result = ncclSuccess;
    for (auto& [nth, first] : interruptions_[function]) {
      if (--nth == 0) result = first();
    }
    return result;
  }
  ncclResult_t Wrong(const std::string& text) {
    TheDriver().fake->NoteMisuse("NCCL: " + text);
    return ncclInvalidUsage;
  }
  bool IsLive(ncclComm_t comm) const { return comms.count(comm) == 1 && !comm->aborted; }

  mutable std::mutex mutex;
  std::condition_variable changed;
  std::map<ncclComm_t, std::shared_ptr<ncclComm>> comms;
  std::map<void*, size_t> memory;  // from ncclMemAlloc
  ncclResult_t async_error = ncclSuccess;
  bool may_share_gpus = false;
  bool may_register = true;

 private:
  std::vector<std::string> calls_;
  std::map<std::string, std::vector<std::pair<int, std::function<ncclResult_t()>>>> interruptions_;
};

Fake& TheFake();

// Adds a collective to the stream in a separate thread and returns ncclInProgress. In a group, the end of the group
// does that.
ncclResult_t EnqueueCollective(const char* name, ncclComm_t comm, const Collective& c, const void* input, void* output,
                               CUstream stream);

// A message to or from a peer. The fake takes messages only within groups.
struct Message {
  bool is_sent;
  int peer;
  size_t count;
  ncclDataType_t type;
};
ncclResult_t EnqueueMessage(const char* name, ncclComm_t comm, const Message& message, const void* data,
                            CUstream stream);

// The group of the calling thread. Its end adds the group's calls to the stream, all messages together, sends first.
ncclResult_t StartGroup();
ncclResult_t EndGroup();

}  // namespace lockstep::cuda
