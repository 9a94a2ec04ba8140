// The driver's functions of devices, contexts and errors, as declared in cuda.h, and the functions that tests call.

#include <algorithm>
#include <cstdio>
#include <iterator>

#include "test/fake_cuda/call.h"

namespace lockstep::cuda {
namespace {

struct KnownError {
  CUresult result;
  const char* name;
};

constexpr KnownError kErrors[] = {
#define LOCKSTEP_FAKE_ERROR(name, value) {name, #name},
    LOCKSTEP_CU_RESULTS(LOCKSTEP_FAKE_ERROR)
#undef LOCKSTEP_FAKE_ERROR
        {kContextIsDestroyed, "CUDA_ERROR_CONTEXT_IS_DESTROYED"},
    {kNotPermitted, "CUDA_ERROR_NOT_PERMITTED"},
    {kCaptureUnjoined, "CUDA_ERROR_STREAM_CAPTURE_UNJOINED"},
    {kCaptureIsolation, "CUDA_ERROR_STREAM_CAPTURE_ISOLATION"},
    {kCapturedEvent, "CUDA_ERROR_CAPTURED_EVENT"},
    {kWrongThread, "CUDA_ERROR_STREAM_CAPTURE_WRONG_THREAD"},
};

const KnownError* FindError(CUresult result) {
  const auto* found =
      std::find_if(std::begin(kErrors), std::end(kErrors), [&](const KnownError& e) { return e.result == result; });
  return found == std::end(kErrors) ? nullptr : found;
}

}  // namespace

// --- Devices and contexts -----------------------------------------------------------------------------------------

EXPORT CUresult cuInit(unsigned) {
  Call call("cuInit", false);
  if (!call.failed()) call.machine.initialized = true;
  return call.result;
}

EXPORT CUresult cuDriverGetVersion(int* version) {
  const auto lock = Machine::Get().Lock();
  *version = Machine::Get().options.version;
  return CUDA_SUCCESS;
}

EXPORT CUresult cuDeviceGetCount(int* count) {
  Call call("cuDeviceGetCount", false);
  if (call.failed()) return call.result;
  *count = call.machine.options.gpus;
  return *count == 0 ? CUDA_ERROR_NO_DEVICE : CUDA_SUCCESS;
}

EXPORT CUresult cuDeviceGet(CUdevice* device, int ordinal) {
  Call call("cuDeviceGet", false);
  if (call.failed()) return call.result;
  if (ordinal < 0 || ordinal >= call.machine.options.gpus) return CUDA_ERROR_INVALID_DEVICE;
  *device = ordinal;
  return CUDA_SUCCESS;
}

EXPORT CUresult cuDeviceGetName(char* name, int length, CUdevice) {
  std::snprintf(name, static_cast<size_t>(length), "Fake GPU");
  return CUDA_SUCCESS;
}

EXPORT CUresult cuDeviceGetUuid_v2(CUuuid* uuid, CUdevice device) {
  Call call("cuDeviceGetUuid_v2", false);
  if (call.failed()) return call.result;
  *uuid = {};
  uuid->bytes[15] = static_cast<char>(device);
  return CUDA_SUCCESS;
}

EXPORT CUresult cuDeviceTotalMem_v2(size_t* bytes, CUdevice) {
  Call call("cuDeviceTotalMem", false);
  *bytes = call.machine.options.bytes;
  return call.result;
}

EXPORT CUresult cuDeviceGetAttribute(int* value, CUdevice_attribute attribute, CUdevice device) {
  switch (attribute) {
    case CU_DEVICE_ATTRIBUTE_MAX_THREADS_PER_BLOCK: *value = 1024; break;
    case CU_DEVICE_ATTRIBUTE_MAX_GRID_DIM_X: *value = 2147483647; break;
    case CU_DEVICE_ATTRIBUTE_MAX_GRID_DIM_Y: *value = 65535; break;
    case CU_DEVICE_ATTRIBUTE_MAX_SHARED_MEMORY_PER_BLOCK: *value = 49152; break;
    case CU_DEVICE_ATTRIBUTE_WARP_SIZE: *value = 32; break;
    case CU_DEVICE_ATTRIBUTE_MULTIPROCESSOR_COUNT: {
      const std::vector<int>& all = Machine::Get().options.multiprocessors;
      *value = static_cast<size_t>(device) < all.size() ? all[static_cast<size_t>(device)] : 132;
      break;
    }
    case CU_DEVICE_ATTRIBUTE_COMPUTE_MODE: *value = CU_COMPUTEMODE_DEFAULT; break;
    // Of eight GPUs, any two differ in one of these attributes, and some pairs in no other.
    case CU_DEVICE_ATTRIBUTE_PCI_DOMAIN_ID: *value = device / 4; break;
    case CU_DEVICE_ATTRIBUTE_PCI_BUS_ID: *value = 1 + device / 2 % 2; break;
    case CU_DEVICE_ATTRIBUTE_PCI_DEVICE_ID: *value = device % 2; break;
    case CU_DEVICE_ATTRIBUTE_L2_CACHE_SIZE: *value = 50 << 20; break;
    case CU_DEVICE_ATTRIBUTE_MAX_THREADS_PER_MULTIPROCESSOR: *value = 2048; break;
    case CU_DEVICE_ATTRIBUTE_COMPUTE_CAPABILITY_MAJOR: *value = Machine::Get().options.capability / 10; break;
    case CU_DEVICE_ATTRIBUTE_COMPUTE_CAPABILITY_MINOR: *value = Machine::Get().options.capability % 10; break;
    case CU_DEVICE_ATTRIBUTE_MAX_SHARED_MEMORY_PER_MULTIPROCESSOR: *value = 233472; break;
    case CU_DEVICE_ATTRIBUTE_MAX_SHARED_MEMORY_PER_BLOCK_OPTIN: *value = 232448; break;
    case CU_DEVICE_ATTRIBUTE_MAX_BLOCKS_PER_MULTIPROCESSOR: *value = 32; break;
    default: *value = 0; break;
  }
  return CUDA_SUCCESS;
}

EXPORT CUresult cuDevicePrimaryCtxRetain(CUcontext* context, CUdevice device) {
  Call call("cuDevicePrimaryCtxRetain", false);
  if (call.failed()) return call.result;
  if (device < 0 || device >= call.machine.options.gpus) return CUDA_ERROR_INVALID_DEVICE;
  *context = call.machine.contexts[static_cast<size_t>(device)].get();
  if (++(*context)->retained == 1) ++call.machine.contexts_made;
  return CUDA_SUCCESS;
}

EXPORT CUresult cuDevicePrimaryCtxRelease_v2(CUdevice device) {
  Call call("cuDevicePrimaryCtxRelease", false);
  if (call.failed()) return call.result;
  Machine& machine = call.machine;
  CUcontext context = machine.contexts.at(static_cast<size_t>(device)).get();
  if (context->retained == 0) return machine.Wrong(CUDA_ERROR_INVALID_CONTEXT, "a context is released twice");
  if (--context->retained > 0) return CUDA_SUCCESS;
  machine.Release(context);
  return CUDA_SUCCESS;
}

EXPORT CUresult cuCtxSetCurrent(CUcontext context) {
  Call call("cuCtxSetCurrent", false);
  if (!call.failed() && context != nullptr && context->retained == 0) {
    return call.machine.Wrong(kContextIsDestroyed, "cuCtxSetCurrent of a context that was released");
  }
  if (!call.failed()) Machine::current = context;
  return call.result;
}

// --- Errors -------------------------------------------------------------------------------------------------------

EXPORT CUresult cuGetErrorName(CUresult result, const char** name) {
  const KnownError* known = FindError(result);
  *name = known != nullptr ? known->name : nullptr;
  return known != nullptr ? CUDA_SUCCESS : CUDA_ERROR_INVALID_VALUE;
}

EXPORT CUresult cuGetErrorString(CUresult result, const char** text) {
  *text = FindError(result) != nullptr ? "an error of the fake driver" : nullptr;
  return *text != nullptr ? CUDA_SUCCESS : CUDA_ERROR_INVALID_VALUE;
}

// --- For tests ----------------------------------------------------------------------------------------------------

namespace {

class Control final : public FakeDriver {
 public:
  void Reset(const Options& options) override {
    auto lock = machine_.Lock();
    machine_.Reset(lock, options);
    machine_.initialized = false;
  }
  void OnCall(std::string_view function, int nth, std::function<CUresult()> first) override {
    const auto lock = machine_.Lock();
    machine_.interruptions[std::string(function)].emplace_back(nth, std::move(first));
  }
  void BreakIn(CUstream stream, CUresult result) override {
    const auto lock = machine_.Lock();
    machine_.Enqueue(stream, "a test", [result] { return result; });
  }
  std::vector<std::string> calls() const override {
    const auto lock = machine_.Lock();
    return machine_.calls;
  }
  std::vector<std::string> misuse() const override {
    const auto lock = machine_.Lock();
    return machine_.misuse;
  }
  int contexts_made() const override {
    const auto lock = machine_.Lock();
    return machine_.contexts_made;
  }
  std::vector<std::string> leaks() const override {
    const auto lock = machine_.Lock();
    return machine_.leaks;
  }
  size_t used(int gpu) const override {
    const auto lock = machine_.Lock();
    return machine_.used(gpu);
  }
  std::byte* Find(CUdeviceptr address, size_t bytes) const override {
    const auto lock = machine_.Lock();
    return machine_.Find(address, bytes);
  }
  bool Enqueue(CUstream stream, std::string what, std::function<CUresult()> work, const void* owner) override {
    const auto lock = machine_.Lock();
    machine_.CheckNotRetired(stream, what, "a stream");
    machine_.calls.push_back(what);
    machine_.Enqueue(stream, std::move(what), std::move(work), owner);
    return stream->capture != nullptr;
  }
  bool IsInGraph(const void* owner) const override {
    const auto lock = machine_.Lock();
    return machine_.IsInGraph(owner);
  }
  void AwaitIdle(int gpu) override {
    auto lock = machine_.Lock();
    machine_.AwaitIdle(lock, gpu);
  }
  void Spend(CUstream stream, std::chrono::microseconds time) override {
    const auto lock = machine_.Lock();
    stream->spent += time;
  }
  std::vector<std::string> lazy_loads() const override {
    const auto lock = machine_.Lock();
    return machine_.lazy_loads;
  }
  int most_loads_at_once() const override {
    const auto lock = machine_.Lock();
    return machine_.most_loads;
  }
  int CurrentGpu() const override { return Machine::current == nullptr ? -1 : Machine::current->gpu; }
  void NoteMisuse(const std::string& text) override {
    const auto lock = machine_.Lock();
    (void)machine_.Wrong(kNotPermitted, text);
  }

 private:
  Machine& machine_ = Machine::Get();
};

}  // namespace

EXPORT FakeDriver* lockstep_fake_driver() {
  static Control* const control = new Control;
  return control;
}

}  // namespace lockstep::cuda
