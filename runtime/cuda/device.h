// A GPU: memory, a stream for steps, and a stream for copies from the host, using only the CUDA driver. It lives in the
// GPU's primary context, which NVIDIA's libraries share. The context ends with its last device unless it is kept
// (kept_contexts.h). One thread at a time uses a device and its objects. Other callers of the driver must be in that
// thread, where the context is current after any call of the device. A device does not survive a fork.
//
// Some errors, such as an access to an invalid address by a kernel, break a context for ever. Then the device returns
// the first cause from every call, and the process must be restarted. So other callers of the driver or a library let
// the device check their results.

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

  // Registers errors that a kernel can detect on the GPU, and returns an id. The kernel writes (id << 32 | index) to
  // error_word() atomically, where `index` is a position in `messages`. The next Synchronize() then returns
  // kInvalidArgument with that message. If several kernels write, one of their errors is returned.
  uint32_t RegisterErrors(std::vector<std::string> messages);
  CUdeviceptr error_word() const { return error_word_; }  // 64 bits in GPU memory, 0 without an error

  // A function that the device calls about once a millisecond during a wait, with the duration of the wait so far, and
  // once more after all work has ended. An error from it ends the wait and is returned: for example, a peer has died,
  // for which the stream would wait for ever. Before it returns an error, a watch must abort the work for which the
  // stream waits. Synchronize() then gives this work one more second to end, without calling watches. A watch must not
  // call the device. All watches are called, and the first error counts.
  using Watch = std::function<absl::Status(absl::Duration waited)>;
  uint64_t AddWatch(Watch watch);
  void RemoveWatch(uint64_t id);

 private:
  friend class CudaDevice;

  CudaDevice& device_;
  CUstream handle_ = nullptr;
  CUdeviceptr error_word_ = 0;
  std::vector<std::vector<std::string>> errors_;  // element i belongs to id i + 1
  std::map<uint64_t, Watch> watches_;
  uint64_t next_watch_ = 1;
};

class CudaDevice final : public Device {
 public:
  // Creates the GPU for the rank with this number on its host: ranks take the GPUs in turn, and share them if there are
  // fewer GPUs. Requires that cuInit has been called for the driver of `api`.
  static absl::StatusOr<std::unique_ptr<CudaDevice>> Create(const DriverApi& api, int rank_on_host);
  // Waits for queued work, for ten seconds at most. If work remains, the device leaks all memory that it may use.
  ~CudaDevice() override;

  const DriverApi& api() const { return api_; }
  CUdevice gpu() const { return gpu_; }
  CUcontext context() const { return context_; }
  // Makes its context current in the calling thread, for callers of the driver or a library.
  absl::Status MakeCurrent() { return Enter(); }
  // For callers of the driver beside the device: returns OK, or an error that names the device and `call`; the first
  // cause if the context is broken.
  absl::Status Check(CUresult result, std::string_view call);
  // The same for the result of a library that queues work. Its error may come from earlier work, if the library is the
  // first to detect it. So this checks the stream.
  absl::Status CheckLibrary(const absl::Status& status);
  // Call it before queueing work in stream(); one call covers up to three pieces of work. Waits while much work is
  // queued and calls the watches meanwhile. A call of a driver whose queue is full (about 1024 entries) would block
  // without calling them. Does nothing while stream() is captured.
  absl::Status WaitForQueueSpace();
  // For code that lets the GPU use memory in other streams. Freed memory is kept while `holds` returns true, that is,
  // while those streams use it. The device's thread calls it. It must not call the device.
  using Holds = std::function<bool()>;
  uint64_t AddHolder(Holds holds);
  void RemoveHolder(uint64_t id);
  const std::string& description() const { return description_; }  // "cuda:0 (NVIDIA H200, 143771 MiB)"

  CudaStream* stream() override { return &stream_; }
  absl::StatusOr<std::unique_ptr<DeviceMemory>> Allocate(size_t bytes, std::string_view label) override;
  absl::StatusOr<std::unique_ptr<DeviceMemory>> AllocatePinned(size_t bytes, std::string_view label) override;
  // Copies from the host have a stream of their own, which keeps the order of stream() or runs ahead of it. While
  // stream() is captured, only CopyWithin and copies of pinned memory may be called. Pending copies to the host may
  // have the size of Staging in total; a further copy waits for the oldest.
  absl::Status CopyToDevice(std::byte* device, const std::byte* host, size_t bytes) override;
  absl::Status CopyToHost(std::byte* host, const std::byte* device, size_t bytes) override;
  absl::Status CopyWithin(std::byte* to, const std::byte* from, size_t bytes) override;
  absl::Status CopyAhead(std::byte* device, const std::byte* host, size_t bytes, DeviceEvent& after) override;
  absl::Status RunOnHost(std::function<absl::Status()> function) override;
  absl::StatusOr<std::unique_ptr<DeviceEvent>> CreateEvent() override;
  // If kernels check values, this also copies the error word, so that Await knows its value at this point.
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
  absl::Status broken_;  // remains set for ever
  CudaStream stream_;
  CUstream copies_ = nullptr;   // for copies from the host
  CUevent computed_ = nullptr;  // copies_ waits for it
  CUevent copied_ = nullptr;    // stream_ waits for it
  // Recorded in stream_ alternately, after a number of calls of WaitForQueueSpace.
  std::array<CUevent, 2> queue_events_ = {};
  int queued_ = 0;                         // calls of WaitForQueueSpace since the last event
  std::unique_ptr<HostCalls> host_calls_;  // the driver's threads use it
  Staging to_device_, to_host_;
  std::byte* word_ = nullptr;                  // pinned: a copy of error_word()
  std::map<const std::byte*, size_t> pinned_;  // begin and bytes of memory from AllocatePinned
  std::vector<Freed> freed_;                   // freed while queued work may use it
  std::map<uint64_t, Holds> holders_;
  uint64_t next_holder_ = 1;
  uint64_t failures_ = 0;  // the number of failures of Synchronize
  absl::Status failure_;   // the last failure
};

}  // namespace lockstep::cuda
