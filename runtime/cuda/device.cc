#include "runtime/cuda/device.h"

#include <algorithm>
#include <chrono>
#include <cstdio>
#include <cstring>
#include <memory>
#include <mutex>
#include <thread>
#include <utility>
#include <vector>

#include "core/status.h"

namespace lockstep::cuda {
namespace {

using Clock = std::chrono::steady_clock;

constexpr auto kBusy = std::chrono::microseconds(200);  // a wait polls for this long without sleeping
constexpr auto kRest = std::chrono::microseconds(50);
constexpr auto kBetweenWatches = std::chrono::milliseconds(1);
constexpr auto kLastWait = std::chrono::seconds(10);
constexpr int kQueued = 128;  // calls of WaitForQueueSpace between its events; at most twice as many are queued
constexpr auto kAfterAbort = std::chrono::seconds(1);  // the time for aborted work to end

CUdeviceptr AddressOf(const std::byte* data) { return reinterpret_cast<CUdeviceptr>(data); }

// Returns true if the context is unusable afterwards: every later call returns the error, too.
bool BreaksContext(CUresult result) {
  constexpr int kFirst = 714, kLast = 719;  // exceptions of kernels, up to CUDA_ERROR_LAUNCH_FAILED
  constexpr int kNvlinkUncorrectable = 220, kAssert = 710, kContextIsDestroyed = 709;
  switch (static_cast<int>(result)) {
    case CUDA_ERROR_ECC_UNCORRECTABLE:
    case CUDA_ERROR_ILLEGAL_ADDRESS:
    case CUDA_ERROR_LAUNCH_TIMEOUT:
    case CUDA_ERROR_UNKNOWN:
    case CUDA_ERROR_DEINITIALIZED:
    case kNvlinkUncorrectable:
    case kAssert:
    case kContextIsDestroyed: return true;
    default: return result >= kFirst && result <= kLast;
  }
}

std::string MiB(size_t bytes) { return std::to_string(bytes >> 20) + " MiB"; }

std::string Text(size_t bytes, std::string_view label) {
  return std::to_string(bytes) + " bytes for " + std::string(label);
}

// Keeps what work that does not end may still use, until the process ends.
void KeepForever(std::unique_ptr<HostCalls> calls) {
  static std::mutex mutex;
  static auto* const kept = new std::vector<std::unique_ptr<HostCalls>>;
  const std::lock_guard<std::mutex> lock(mutex);
  kept->push_back(std::move(calls));
}

}  // namespace

// --- The stream ---------------------------------------------------------------------------------------------------

uint32_t CudaStream::RegisterErrors(std::vector<std::string> messages) {
  errors_.push_back(std::move(messages));
  return static_cast<uint32_t>(errors_.size());
}

uint64_t CudaStream::AddWatch(Watch watch) {
  watches_.emplace(next_watch_, std::move(watch));
  return next_watch_++;
}

void CudaStream::RemoveWatch(uint64_t id) { watches_.erase(id); }

// --- Creation and destruction -------------------------------------------------------------------------------------

class CudaDevice::Memory final : public DeviceMemory {
 public:
  Memory(CudaDevice& device, std::byte* data, size_t bytes, bool pinned)
      : DeviceMemory(data, bytes), device_(device), pinned_(pinned) {}
  ~Memory() override { device_.Free({data(), pinned_}); }

 private:
  CudaDevice& device_;
  const bool pinned_;
};

class CudaDevice::Event final : public DeviceEvent {
 public:
  Event(CudaDevice& device, CUevent handle, std::unique_ptr<DeviceMemory> word)
      : device_(device), handle_(handle), word_(std::move(word)) {}
  ~Event() override {
    (void)device_.Enter();
    (void)device_.api_.EventDestroy(handle_);
  }
  CUevent handle() const { return handle_; }
  std::byte* word() const { return word_->data(); }

  bool recorded = false;
  uint64_t copies = 0;    // blocks of to_host_ that were used before it
  uint64_t failures = 0;  // the device's failures_ when it was recorded

 private:
  CudaDevice& device_;
  const CUevent handle_;
  const std::unique_ptr<DeviceMemory> word_;  // pinned: the error word at this event; 0 if kernels check nothing
};

absl::StatusOr<std::unique_ptr<CudaDevice>> CudaDevice::Create(const DriverApi& api, int rank_on_host) {
  int count = 0;
  RETURN_IF_ERROR(api.Check(api.DeviceGetCount(&count), "cuDeviceGetCount"));
  if (count == 0) return FailedPrecondition() << "the CUDA driver finds no GPU";
  const int ordinal = rank_on_host % count;
  CUdevice gpu = 0;
  RETURN_IF_ERROR(api.Check(api.DeviceGet(&gpu, ordinal), "cuDeviceGet of GPU " + std::to_string(ordinal)));
  char model[128] = {};
  size_t bytes = 0;
  RETURN_IF_ERROR(api.Check(api.DeviceGetName(model, sizeof(model), gpu), "cuDeviceGetName"));
  RETURN_IF_ERROR(api.Check(api.DeviceTotalMem(&bytes, gpu), "cuDeviceTotalMem"));
  std::string name = "cuda:" + std::to_string(ordinal);
  std::string description = name + " (" + model + ", " + MiB(bytes) + ")";
  std::unique_ptr<CudaDevice> device(new CudaDevice(api, gpu, std::move(name), std::move(description)));
  RETURN_IF_ERROR(device->Open());
  return device;
}

CudaDevice::CudaDevice(const DriverApi& api, CUdevice gpu, std::string name, std::string description)
    : Device(std::move(name), /*is_host=*/false),
      api_(api),
      gpu_(gpu),
      description_(std::move(description)),
      stream_(*this),
      host_calls_(std::make_unique<HostCalls>()),
      to_device_(
          api_, [this](CUresult result, const char* call) { return Check(result, call); },
          [this](CUevent event) { return AwaitEvent(event); }),
      to_host_(
          api_, [this](CUresult result, const char* call) { return Check(result, call); },
          [this](CUevent event) { return AwaitEvent(event); }) {}

absl::Status CudaDevice::Open() {
  CUcontext context = nullptr;
  RETURN_IF_ERROR(Check(api_.DevicePrimaryCtxRetain(&context, gpu_), "cuDevicePrimaryCtxRetain"));
  context_ = context;
  RETURN_IF_ERROR(Enter());
  for (CUstream* stream : {&stream_.handle_, &copies_}) {
    RETURN_IF_ERROR(
        Check(api_.StreamCreateWithPriority(stream, CU_STREAM_NON_BLOCKING, 0), "cuStreamCreateWithPriority"));
  }
  for (CUevent* event : {&computed_, &copied_, &queue_events_[0], &queue_events_[1]}) {
    RETURN_IF_ERROR(Check(api_.EventCreate(event, CU_EVENT_DISABLE_TIMING), "cuEventCreate"));
  }
  CUdeviceptr word = 0;
  RETURN_IF_ERROR(Check(api_.MemAlloc(&word, sizeof(uint64_t)), "cuMemAlloc of the error word"));
  stream_.error_word_ = word;
  RETURN_IF_ERROR(Check(api_.MemsetD8Async(word, 0, sizeof(uint64_t), stream_.handle_), "cuMemsetD8Async"));
  void* pinned = nullptr;
  RETURN_IF_ERROR(
      Check(api_.MemHostAlloc(&pinned, sizeof(uint64_t), kMemHostAllocPortable), "cuMemHostAlloc of the error word"));
  word_ = static_cast<std::byte*>(pinned);
  return absl::OkStatus();
}

CudaDevice::~CudaDevice() {
  if (context_ == nullptr) return;
  stream_.watches_.clear();
  // In a broken context, no queued work starts.
  const auto ended = [this] {
    if (stream_.handle_ == nullptr || copies_ == nullptr) return true;  // nothing was queued
    return broken_.ok() ? IsIdle() : !host_calls_->running();
  };
  const auto until = Clock::now() + kLastWait;
  (void)Enter();
  while (!ended() && Clock::now() < until) std::this_thread::sleep_for(kRest);
  if (!ended()) {
    std::fprintf(stderr, "lockstep: %s is destroyed with work in flight that does not end\n", description_.c_str());
    KeepForever(std::move(host_calls_));
    return;
  }
  // In a broken context these calls fail, and the driver frees all memory itself.
  FreeLater();
  to_device_.Free();
  to_host_.Free();
  if (word_ != nullptr) (void)api_.MemFreeHost(word_);
  if (stream_.error_word_ != 0) (void)api_.MemFree(stream_.error_word_);
  for (CUevent event : {computed_, copied_, queue_events_[0], queue_events_[1]}) {
    if (event != nullptr) (void)api_.EventDestroy(event);
  }
  for (CUstream stream : {stream_.handle_, copies_}) {
    if (stream != nullptr) (void)api_.StreamDestroy(stream);
  }
  (void)api_.DevicePrimaryCtxRelease(gpu_);
}

// --- Calls of the driver ------------------------------------------------------------------------------------------

absl::Status CudaDevice::Enter() {
  RETURN_IF_ERROR(broken_);
  return Check(api_.CtxSetCurrent(context_), "cuCtxSetCurrent");
}

absl::Status CudaDevice::Check(CUresult result, std::string_view call) {
  if (result == CUDA_SUCCESS) return absl::OkStatus();
  RETURN_IF_ERROR(broken_);
  const absl::Status status = Annotate(api_.Check(result, call), description_);
  if (BreaksContext(result)) {
    broken_ = ErrorStream(status.code()) << status.message()
                                         << "; this error, of the call named here or of work that was queued before, "
                                         << "ends all use of the GPU by this process";
    return broken_;
  }
  return status;
}

absl::Status CudaDevice::CheckLibrary(const absl::Status& status) {
  if (status.ok()) return status;
  RETURN_IF_ERROR(broken_);
  CUstreamCaptureStatus captures = CU_STREAM_CAPTURE_STATUS_NONE;
  CUresult result = api_.StreamIsCapturing(stream_.handle_, &captures);
  // a stream that is being captured must not be queried
  const bool captured = captures != CU_STREAM_CAPTURE_STATUS_NONE;
  if (result == CUDA_SUCCESS && !captured) result = api_.StreamQuery(stream_.handle_);
  if (!BreaksContext(result)) return status;
  return Check(result, std::string(status.message()) + "; then a query of the stream");
}

absl::StatusOr<bool> CudaDevice::IsCaptured() {
  CUstreamCaptureStatus captures = CU_STREAM_CAPTURE_STATUS_NONE;
  RETURN_IF_ERROR(Check(api_.StreamIsCapturing(stream_.handle_, &captures), "cuStreamIsCapturing"));
  return captures != CU_STREAM_CAPTURE_STATUS_NONE;
}

absl::Status CudaDevice::AskWatches(absl::Duration waited) {
  absl::Status first;
  for (const auto& [id, watch] : stream_.watches_) first.Update(watch(waited));
  return first;
}

absl::Status CudaDevice::Await(const std::function<CUresult()>& query, std::string_view call) {
  const auto begin = Clock::now();
  auto watched = begin;
  for (;;) {
    const CUresult result = query();
    if (result != CUDA_ERROR_NOT_READY) return Check(result, call);
    const auto now = Clock::now();
    if (now - watched >= kBetweenWatches) {
      watched = now;
      RETURN_IF_ERROR(AskWatches(absl::FromChrono(now - begin)));
    }
    if (now - begin < kBusy) std::this_thread::yield();
    else std::this_thread::sleep_for(kRest);
  }
}

absl::Status CudaDevice::AwaitEvent(CUevent event) {
  return Await([this, event] { return api_.EventQuery(event); }, "cuEventQuery");
}

// Checks both streams: if a call of the driver failed, one may not wait for the other.
bool CudaDevice::IsIdle() {
  for (CUstream stream : {stream_.handle_, copies_}) {
    const CUresult result = api_.StreamQuery(stream);
    if (result == CUDA_SUCCESS) continue;
    if (result != CUDA_ERROR_NOT_READY) (void)Check(result, "cuStreamQuery");
    return false;
  }
  return true;
}

absl::Status CudaDevice::AwaitIdle() {
  absl::Status status;
  for (CUstream stream : {stream_.handle_, copies_}) {
    if (status.ok()) status = Await([&] { return api_.StreamQuery(stream); }, "cuStreamQuery");
  }
  if (status.ok()) return status;
  // After an error of a watch: the watch has aborted the work that could not end, so it ends now.
  const auto until = Clock::now() + kAfterAbort;
  while (broken_.ok() && !IsIdle() && Clock::now() < until) std::this_thread::sleep_for(kRest);
  return status;
}

// --- Memory -------------------------------------------------------------------------------------------------------

absl::Status CudaDevice::OutOfMemory(size_t bytes, std::string_view label) {
  size_t free = 0, total = 0;
  RETURN_IF_ERROR(Check(api_.MemGetInfo(&free, &total), "cuMemGetInfo"));
  return ErrorStream(absl::StatusCode::kResourceExhausted)
         << description_ << " has no " << bytes << " bytes (" << MiB(bytes) << ") of memory for " << label << ": "
         << free << " bytes (" << MiB(free) << ") are free";
}

absl::StatusOr<std::unique_ptr<DeviceMemory>> CudaDevice::Allocate(size_t bytes, std::string_view label) {
  RETURN_IF_ERROR(Enter());
  const size_t wanted = std::max<size_t>(bytes, 1);
  CUdeviceptr address = 0;
  CUresult result = api_.MemAlloc(&address, wanted);
  if (result == CUDA_ERROR_OUT_OF_MEMORY && !freed_.empty()) {
    RETURN_IF_ERROR(AwaitIdle());
    FreeLater();
    result = api_.MemAlloc(&address, wanted);
  }
  if (result == CUDA_ERROR_OUT_OF_MEMORY) return OutOfMemory(bytes, label);
  RETURN_IF_ERROR(Check(result, "cuMemAlloc of " + Text(bytes, label)));
  auto memory = std::make_unique<Memory>(*this, reinterpret_cast<std::byte*>(address), bytes, /*pinned=*/false);
  RETURN_IF_ERROR(Check(api_.MemsetD8Async(address, 0, wanted, stream_.handle_), "cuMemsetD8Async"));
  return memory;
}

absl::StatusOr<std::unique_ptr<DeviceMemory>> CudaDevice::AllocatePinned(size_t bytes, std::string_view label) {
  RETURN_IF_ERROR(Enter());
  const size_t wanted = std::max<size_t>(bytes, 1);
  void* address = nullptr;
  const CUresult result = api_.MemHostAlloc(&address, wanted, kMemHostAllocPortable);
  if (result == CUDA_ERROR_OUT_OF_MEMORY) {
    return ErrorStream(absl::StatusCode::kResourceExhausted)
           << "the host has no " << bytes << " bytes of memory that " << description_ << " can read for " << label;
  }
  RETURN_IF_ERROR(Check(result, "cuMemHostAlloc of " + Text(bytes, label)));
  std::memset(address, 0, wanted);
  auto* data = static_cast<std::byte*>(address);
  pinned_[data] = wanted;
  return std::make_unique<Memory>(*this, data, bytes, /*pinned=*/true);
}

bool CudaDevice::IsPinned(const std::byte* host) const {
  const auto after = pinned_.upper_bound(host);
  return after != pinned_.begin() && host < std::prev(after)->first + std::prev(after)->second;
}

uint64_t CudaDevice::AddHolder(Holds holds) {
  holders_.emplace(next_holder_, std::move(holds));
  return next_holder_++;
}

void CudaDevice::RemoveHolder(uint64_t id) { holders_.erase(id); }

bool CudaDevice::MemoryIsHeld() const {
  return std::any_of(holders_.begin(), holders_.end(), [](const auto& holder) { return holder.second(); });
}

void CudaDevice::Free(const Freed& memory) {
  if (memory.pinned) pinned_.erase(memory.data);
  if (!Enter().ok()) return;  // the end of the context frees it
  if (IsIdle() && !MemoryIsHeld()) FreeNow(memory);
  else freed_.push_back(memory);
}

void CudaDevice::FreeNow(const Freed& memory) {
  (void)(memory.pinned ? api_.MemFreeHost(memory.data) : api_.MemFree(AddressOf(memory.data)));
}

// Call it only when the streams are idle.
void CudaDevice::FreeLater() {
  if (MemoryIsHeld()) return;
  for (const Freed& memory : std::exchange(freed_, {})) FreeNow(memory);
}

// --- Room ---------------------------------------------------------------------------------------------------------

absl::Status CudaDevice::WaitForQueueSpace() {
  if (++queued_ < kQueued) return absl::OkStatus();
  queued_ = 0;
  RETURN_IF_ERROR(Enter());
  ASSIGN_OR_RETURN(const bool captured, IsCaptured());
  if (captured) return absl::OkStatus();
  RETURN_IF_ERROR(Check(api_.EventRecord(queue_events_[0], stream_.handle_), "cuEventRecord"));
  std::swap(queue_events_[0], queue_events_[1]);
  return AwaitEvent(queue_events_[0]);  // recorded by the previous call
}

// --- Work ---------------------------------------------------------------------------------------------------------

absl::Status CudaDevice::CopyToDevice(std::byte* device, const std::byte* host, size_t bytes) {
  RETURN_IF_ERROR(Enter());
  if (bytes == 0) return absl::OkStatus();
  const CUstream steps = stream_.handle_;
  if (IsPinned(host)) {
    RETURN_IF_ERROR(WaitForQueueSpace());
    return Check(api_.MemcpyHtoDAsync(AddressOf(device), host, bytes, steps), "cuMemcpyHtoDAsync");
  }
  if (!IsIdle()) {
    RETURN_IF_ERROR(Check(api_.EventRecord(computed_, steps), "cuEventRecord"));
    RETURN_IF_ERROR(Check(api_.StreamWaitEvent(copies_, computed_, CU_EVENT_WAIT_DEFAULT), "cuStreamWaitEvent"));
  }
  return CopyFromHost(device, host, bytes);
}

absl::Status CudaDevice::CopyAhead(std::byte* device, const std::byte* host, size_t bytes, DeviceEvent& after) {
  RETURN_IF_ERROR(Enter());
  if (bytes == 0) return absl::OkStatus();
  const auto& event = static_cast<const Event&>(after);
  if (event.recorded) {
    RETURN_IF_ERROR(Check(api_.StreamWaitEvent(copies_, event.handle(), CU_EVENT_WAIT_DEFAULT), "cuStreamWaitEvent"));
  }
  return CopyFromHost(device, host, bytes);
}

// Copies in copies_. Later work of the steps' stream waits for it.
absl::Status CudaDevice::CopyFromHost(std::byte* device, const std::byte* host, size_t bytes) {
  const absl::Status status = to_device_.CopyToDevice(AddressOf(device), host, bytes, copies_);
  RETURN_IF_ERROR(Check(api_.EventRecord(copied_, copies_), "cuEventRecord"));
  RETURN_IF_ERROR(Check(api_.StreamWaitEvent(stream_.handle_, copied_, CU_EVENT_WAIT_DEFAULT), "cuStreamWaitEvent"));
  return status;
}

absl::Status CudaDevice::CopyToHost(std::byte* host, const std::byte* device, size_t bytes) {
  RETURN_IF_ERROR(Enter());
  if (bytes == 0) return absl::OkStatus();
  if (IsPinned(host)) {
    RETURN_IF_ERROR(WaitForQueueSpace());
    return Check(api_.MemcpyDtoHAsync(host, AddressOf(device), bytes, stream_.handle_), "cuMemcpyDtoHAsync");
  }
  return to_host_.CopyToHost(host, AddressOf(device), bytes, stream_.handle_);
}

absl::Status CudaDevice::CopyWithin(std::byte* to, const std::byte* from, size_t bytes) {
  RETURN_IF_ERROR(Enter());
  if (bytes == 0) return absl::OkStatus();
  RETURN_IF_ERROR(WaitForQueueSpace());
  return Check(api_.MemcpyDtoDAsync(AddressOf(to), AddressOf(from), bytes, stream_.handle_), "cuMemcpyDtoDAsync");
}

absl::Status CudaDevice::RunOnHost(std::function<absl::Status()> function) {
  RETURN_IF_ERROR(Enter());
  ASSIGN_OR_RETURN(const bool captured, IsCaptured());
  if (captured) {
    return FailedPrecondition() << description_ << ": a function of the host is queued while the stream is captured, "
                                << "and would run once for all launches";
  }
  RETURN_IF_ERROR(WaitForQueueSpace());
  return Check(host_calls_->Queue(api_, stream_.handle_, std::move(function)), "cuLaunchHostFunc");
}

// --- Waiting ------------------------------------------------------------------------------------------------------

absl::StatusOr<std::unique_ptr<DeviceEvent>> CudaDevice::CreateEvent() {
  RETURN_IF_ERROR(Enter());
  ASSIGN_OR_RETURN(auto word, AllocatePinned(sizeof(uint64_t), "the error word of an event"));
  CUevent handle = nullptr;
  RETURN_IF_ERROR(Check(api_.EventCreate(&handle, CU_EVENT_DISABLE_TIMING), "cuEventCreate"));
  return std::make_unique<Event>(*this, handle, std::move(word));
}

absl::Status CudaDevice::Record(DeviceEvent& event) {
  RETURN_IF_ERROR(Enter());
  auto& recorded = static_cast<Event&>(event);
  const CUstream steps = stream_.handle_;
  if (!stream_.errors_.empty()) {
    RETURN_IF_ERROR(Check(api_.MemcpyDtoHAsync(recorded.word(), stream_.error_word_, sizeof(uint64_t), steps),
                          "cuMemcpyDtoHAsync"));
  }
  RETURN_IF_ERROR(Check(api_.EventRecord(recorded.handle(), steps), "cuEventRecord"));
  recorded.recorded = true;
  recorded.copies = to_host_.used();
  recorded.failures = failures_;
  return absl::OkStatus();
}

absl::Status CudaDevice::Await(DeviceEvent& event) {
  auto& awaited = static_cast<Event&>(event);
  if (!awaited.recorded) return Enter();
  if (awaited.failures != failures_) return failure_;
  const absl::Status status = Reach(awaited);
  if (status.ok()) to_host_.Deliver(awaited.copies);
  else to_host_.Drop();
  return status;
}

absl::Status CudaDevice::Reach(Event& event) {
  RETURN_IF_ERROR(Enter());
  RETURN_IF_ERROR(AwaitEvent(event.handle()));
  RETURN_IF_ERROR(AskWatches(absl::ZeroDuration()));  // the work may have been aborted
  RETURN_IF_ERROR(host_calls_->error());
  return CheckErrorWord(event.word());
}

absl::Status CudaDevice::CheckErrorWord(const std::byte* word) const {
  uint64_t value = 0;
  std::memcpy(&value, word, sizeof(value));
  if (value == 0) return absl::OkStatus();
  const uint64_t id = value >> 32, index = value & 0xffffffff;
  if (id == 0 || id > stream_.errors_.size() || index >= stream_.errors_[id - 1].size()) {
    return Internal() << description_ << ": the error word is " << value << ", which no kernel has registered";
  }
  return InvalidArgument() << stream_.errors_[id - 1][index];
}

absl::Status CudaDevice::Finish() {
  const CUstream steps = stream_.handle_;
  const bool kernels_check = !stream_.errors_.empty();
  if (kernels_check) {
    RETURN_IF_ERROR(
        Check(api_.MemcpyDtoHAsync(word_, stream_.error_word_, sizeof(uint64_t), steps), "cuMemcpyDtoHAsync"));
  }
  RETURN_IF_ERROR(AwaitIdle());
  FreeLater();
  RETURN_IF_ERROR(AskWatches(absl::ZeroDuration()));  // the work may have been aborted
  const absl::Status of_host = host_calls_->TakeError();
  const absl::Status of_kernels = kernels_check ? CheckErrorWord(word_) : absl::OkStatus();
  if (of_kernels.ok()) return of_host;
  RETURN_IF_ERROR(Check(api_.MemsetD8Async(stream_.error_word_, 0, sizeof(uint64_t), steps), "cuMemsetD8Async"));
  return of_kernels;
}

absl::Status CudaDevice::Synchronize() {
  absl::Status status = Enter();
  if (status.ok()) status = Finish();
  if (status.ok()) {
    to_host_.Deliver(to_host_.used());
    return status;
  }
  to_host_.Drop();
  ++failures_;
  return failure_ = status;
}

}  // namespace lockstep::cuda
