// A GPU: memory, a stream in which steps run, and one in which copies from the host do, over the CUDA driver alone. It
// lives in the GPU's primary context, which NVIDIA's libraries share, and which ends with its last device unless it is
// kept (kept_contexts.h). One thread at a time uses a device and what is of it; whoever calls the driver beside it does
// so in that thread, where its context is current after any call of it. A device does not survive a fork.
//
// Some errors break a context for ever, as an address that a kernel must not touch. The device then gives the first
// cause as the answer to every call, and the process has to start anew. So who calls the driver or a library beside it
// has it check what is returned.

#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <functional>
#include <map>
#include <memory>
#include <string>
#include <string_view>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/time/time.h"
#include "runtime/cuda/driver.h"
#include "runtime/cuda/host_calls.h"
#include "runtime/cuda/staging.h"
#include "runtime/device.h"

namespace lockstep::cuda {

class CudaDevice;

class CudaStream final : public Stream {
 public:
  explicit CudaStream(CudaDevice& device) : device_(device) {}

  CudaDevice& device() const { return device_; }
  CUstream handle() const { return handle_; }

  // Errors that a kernel can meet on the GPU, of which it says the index into `messages`. The kernel that gets this id
  // writes (id << 32 | index) to error_word(), in one piece; the next Synchronize() is then kInvalidArgument with that
  // message. If several kernels write, one of them is heard.
  uint32_t RegisterErrors(std::vector<std::string> messages);
  CUdeviceptr error_word() const { return error_word_; }  // 64 bits of the GPU, 0 while all is well

  // Whoever waits for the device asks `watch` about once a millisecond, and says how long it has waited, and again when
  // all has ended; its error ends the wait, and is what is returned: a peer has died, for which the stream would wait
  // for ever. Before it returns an error the watch aborts what the stream waits for: Synchronize() gives that one
  // second more to end, without asking. A watch must not call the device. All are asked, and the first error counts.
  using Watch = std::function<absl::Status(absl::Duration waited)>;
  uint64_t AddWatch(Watch watch);
  void RemoveWatch(uint64_t id);

 private:
  friend class CudaDevice;

  CudaDevice& device_;
  CUstream handle_ = nullptr;
  CUdeviceptr error_word_ = 0;
  std::vector<std::vector<std::string>> errors_;  // element i is that of id i + 1
  std::map<uint64_t, Watch> watches_;
  uint64_t next_watch_ = 1;
};

class CudaDevice final : public Device {
 public:
  // The GPU of the rank of this number among its host's: ranks take them in turn, and share them if there are fewer.
  // The table is one of a driver that cuInit has been called for.
  static absl::StatusOr<std::unique_ptr<CudaDevice>> Create(const DriverApi& api, int rank_on_host);
  // Waits for what is queued, for ten seconds at most: then it stays in memory, with all that it may use.
  ~CudaDevice() override;

  const DriverApi& api() const { return api_; }
  CUdevice gpu() const { return gpu_; }
  CUcontext context() const { return context_; }
  // Makes its context that of the calling thread, for whoever calls the driver or a library.
  absl::Status MakeCurrent() { return Enter(); }
  // For whoever calls the driver beside the device: OK, or an error that names the device and `call`; the first cause
  // if the context is broken.
  absl::Status Check(CUresult result, std::string_view call);
  // The same of what a library that queues work returned. Its error may be of work that was queued before, which the
  // library is then the first to meet: the stream is asked.
  absl::Status CheckLibrary(const absl::Status& status);
  // Whoever queues work in stream() calls it first, once for what may be three pieces of work. Waits while much is
  // queued, and so asks the watches, as a call of a driver whose queue is full (of some 1024) blocks, and asks nobody.
  // While stream() is captured it does nothing.
  absl::Status MakeRoom();
  // For whoever has the GPU use memory in other streams. Memory that is freed is kept as long as `holds` says that it
  // is used there, which is asked in the device's thread, and must not call the device.
  using Holds = std::function<bool()>;
  uint64_t AddHolder(Holds holds);
  void RemoveHolder(uint64_t id);
  const std::string& description() const { return description_; }  // "cuda:0 (NVIDIA H200, 143771 MiB)"

  CudaStream* stream() override { return &stream_; }
  absl::StatusOr<std::unique_ptr<DeviceMemory>> Allocate(size_t bytes, std::string_view label) override;
  absl::StatusOr<std::unique_ptr<DeviceMemory>> AllocatePinned(size_t bytes, std::string_view label) override;
  // Copies from the host have a stream of their own, which keeps the order of stream() or runs ahead of it. While
  // stream() is captured none of these may be called but CopyWithin and copies of pinned memory. Copies to the host
  // that are not delivered yet may be of Staging's size in all; one that is more waits for the oldest.
  absl::Status CopyToDevice(std::byte* device, const std::byte* host, size_t bytes) override;
  absl::Status CopyToHost(std::byte* host, const std::byte* device, size_t bytes) override;
  absl::Status CopyWithin(std::byte* to, const std::byte* from, size_t bytes) override;
  absl::Status CopyAhead(std::byte* device, const std::byte* host, size_t bytes, DeviceEvent& after) override;
  absl::Status RunOnHost(std::function<absl::Status()> function) override;
  absl::StatusOr<std::unique_ptr<DeviceEvent>> CreateEvent() override;
  // If kernels check values this takes the error word along, so that Await knows what it was here.
  absl::Status Record(DeviceEvent& event) override;
  absl::Status Await(DeviceEvent& event) override;
  absl::Status Synchronize() override;

 private:
  class Memory;
  class Event;
  struct Freed {
    std::byte* data;
    bool pinned;
  };

  CudaDevice(const DriverApi& api, CUdevice gpu, std::string name, std::string description);
  absl::Status Open();

  absl::Status Enter();
  absl::StatusOr<bool> IsCaptured();
  absl::Status Await(const std::function<CUresult()>& query, std::string_view call);
  absl::Status AskWatches(absl::Duration waited);
  absl::Status OutOfMemory(size_t bytes, std::string_view label);
  absl::Status CopyFromHost(std::byte* device, const std::byte* host, size_t bytes);
  absl::Status AwaitEvent(CUevent event);
  absl::Status CheckErrorWord(const std::byte* word) const;
  absl::Status Reach(Event& event);
  absl::Status Finish();
  bool IsPinned(const std::byte* host) const;
  bool IsIdle();
  absl::Status AwaitIdle();
  bool MemoryIsHeld() const;
  void Free(const Freed& memory);
  void FreeNow(const Freed& memory);
  void FreeLater();

  const DriverApi api_;
  const CUdevice gpu_;
  const std::string description_;
  CUcontext context_ = nullptr;
  absl::Status broken_;  // for ever
  CudaStream stream_;
  CUstream copies_ = nullptr;              // from the host
  CUevent computed_ = nullptr;             // what copies_ waits for
  CUevent copied_ = nullptr;               // what stream_ waits for
  std::array<CUevent, 2> room_ = {};       // in stream_, after so many calls of MakeRoom, by turns
  int queued_ = 0;                         // calls of MakeRoom since the last
  std::unique_ptr<HostCalls> host_calls_;  // the driver's threads use it
  Staging to_device_, to_host_;
  std::byte* word_ = nullptr;                  // pinned: where error_word() is copied to
  std::map<const std::byte*, size_t> pinned_;  // begin and bytes of what AllocatePinned gave out
  std::vector<Freed> freed_;                   // when work was queued that may use it
  std::map<uint64_t, Holds> holders_;
  uint64_t next_holder_ = 1;
  uint64_t failures_ = 0;  // of Synchronize
  absl::Status failure_;   // the last of them
};

}  // namespace lockstep::cuda
