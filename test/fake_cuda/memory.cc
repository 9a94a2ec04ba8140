// The driver's functions of memory, as declared in cuda.h.

#include <algorithm>
#include <cstdlib>
#include <cstring>
#include <iterator>

#include "test/fake_cuda/call.h"

namespace lockstep::cuda {
namespace {

// The source or destination of a copy, on a GPU or on the host.
struct Side {
  CUdeviceptr device = 0;  // 0: on the host
  std::byte* host = nullptr;
};

// A copy. Its addresses are checked when it is called, and again when it runs.
CUresult Copy(Call& call, const char* name, const Side& to, const Side& from, size_t bytes, CUstream stream) {
  if (call.failed()) return call.result;
  Machine& machine = call.machine;
  const int gpu = stream->context->gpu;
  const auto pinned = [&machine](const std::byte* at, size_t n) {
    auto piece = machine.pinned.upper_bound(const_cast<std::byte*>(at));
    return piece != machine.pinned.begin() && at + n <= std::prev(piece)->first + std::prev(piece)->second;
  };
  bool was_pinned[2];
  for (int i = 0; i < 2; ++i) {
    const Side& side = i == 0 ? to : from;
    was_pinned[i] = side.device == 0 && pinned(side.host, bytes);
    const bool fits = side.device != 0 ? machine.Find(side.device, bytes, gpu) != nullptr : side.host != nullptr;
    if (bytes == 0 || fits) continue;
    return machine.Wrong(CUDA_ERROR_INVALID_VALUE,
                         Text(name, " of ", bytes, " bytes ", i == 0 ? "to " : "from ", machine.Place(side.device)));
  }
  if (stream->capture != nullptr && ((to.device == 0 && !was_pinned[0]) || (from.device == 0 && !was_pinned[1]))) {
    stream->capture->invalid = true;
    return machine.Wrong(CUDA_ERROR_STREAM_CAPTURE_UNSUPPORTED, Text(name, " of memory that is not pinned, captured"));
  }
  machine.Enqueue(stream, name, [=, &machine, name = std::string(name)]() -> CUresult {
    std::byte* found[2];
    {
      const auto lock = machine.Lock();
      for (int i = 0; i < 2; ++i) {
        const Side& side = i == 0 ? to : from;
        found[i] = side.device != 0                             ? machine.Find(side.device, bytes, gpu)
                   : !was_pinned[i] || pinned(side.host, bytes) ? side.host
                                                                : nullptr;
        if (found[i] == nullptr && bytes > 0) {
          return machine.Wrong(CUDA_ERROR_ILLEGAL_ADDRESS,
                               Text(name, " of memory that has been freed: ",
                                    side.device != 0 ? machine.Place(side.device) : "pinned memory"));
        }
      }
    }
    if (bytes > 0) std::memmove(found[0], found[1], bytes);
    return CUDA_SUCCESS;
  });
  return CUDA_SUCCESS;
}

}  // namespace

// --- Memory -------------------------------------------------------------------------------------------------------

EXPORT CUresult cuMemGetInfo_v2(size_t* free, size_t* total) {
  Call call("cuMemGetInfo", false);
  if (call.InContext().failed()) return call.result;
  *total = call.machine.options.bytes;
  *free = *total - call.machine.used(Machine::current->gpu);
  return CUDA_SUCCESS;
}

EXPORT CUresult cuMemAlloc_v2(CUdeviceptr* memory, size_t bytes) {
  Call call(Text("cuMemAlloc ", bytes));
  if (call.InContext().Unsafe("cuMemAlloc").failed()) return call.result;
  return call.machine.Allocate(Machine::current->gpu, bytes, memory);
}

EXPORT CUresult cuMemFree_v2(CUdeviceptr memory) {
  Call call("cuMemFree");
  if (call.InContext().Unsafe("cuMemFree").failed()) return call.result;
  return memory == 0 ? CUDA_SUCCESS : call.machine.Free(memory);
}

EXPORT CUresult cuMemHostAlloc(void** memory, size_t bytes, unsigned) {
  Call call(Text("cuMemHostAlloc ", bytes));
  if (call.InContext().Unsafe("cuMemHostAlloc").failed()) return call.result;
  if (bytes == 0) return call.machine.Wrong(CUDA_ERROR_INVALID_VALUE, "cuMemHostAlloc of 0 bytes");
  *memory = std::aligned_alloc(4096, (bytes + 4095) / 4096 * 4096);
  if (*memory == nullptr) return CUDA_ERROR_OUT_OF_MEMORY;
  std::memset(*memory, 0xcd, bytes);
  call.machine.pinned[static_cast<std::byte*>(*memory)] = bytes;
  return CUDA_SUCCESS;
}

EXPORT CUresult cuMemFreeHost(void* memory) {
  Call call("cuMemFreeHost");
  if (call.InContext().Unsafe("cuMemFreeHost").failed()) return call.result;
  if (call.machine.pinned.erase(static_cast<std::byte*>(memory)) == 0) {
    return call.machine.Wrong(CUDA_ERROR_INVALID_VALUE, "cuMemFreeHost of memory that is not pinned");
  }
  std::free(memory);
  return CUDA_SUCCESS;
}

EXPORT CUresult cuMemcpyHtoDAsync_v2(CUdeviceptr to, const void* from, size_t bytes, CUstream stream) {
  Call call(Text("cuMemcpyHtoDAsync ", bytes, " ", Name(stream)));
  return Copy(call.Queues(stream), "cuMemcpyHtoDAsync", {.device = to},
              {.host = static_cast<std::byte*>(const_cast<void*>(from))}, bytes, stream);
}

EXPORT CUresult cuMemcpyDtoHAsync_v2(void* to, CUdeviceptr from, size_t bytes, CUstream stream) {
  Call call(Text("cuMemcpyDtoHAsync ", bytes, " ", Name(stream)));
  return Copy(call.Queues(stream), "cuMemcpyDtoHAsync", {.host = static_cast<std::byte*>(to)}, {.device = from}, bytes,
              stream);
}

EXPORT CUresult cuMemcpyDtoDAsync_v2(CUdeviceptr to, CUdeviceptr from, size_t bytes, CUstream stream) {
  Call call(Text("cuMemcpyDtoDAsync ", bytes, " ", Name(stream)));
  return Copy(call.Queues(stream), "cuMemcpyDtoDAsync", {.device = to}, {.device = from}, bytes, stream);
}

EXPORT CUresult cuMemcpy2DAsync_v2(const CUDA_MEMCPY2D* copy, CUstream stream) {
  Call call(Text("cuMemcpy2DAsync ", copy->WidthInBytes, " x ", copy->Height, " ", Name(stream)));
  if (call.Queues(stream).failed()) return call.result;
  const bool possible = copy->WidthInBytes <= std::min(copy->srcPitch, copy->dstPitch) || copy->Height <= 1;
  if (!possible) return call.machine.Wrong(CUDA_ERROR_INVALID_VALUE, "cuMemcpy2DAsync: rows overlap");
  for (size_t row = 0; row < copy->Height; ++row) {
    const size_t to = copy->dstXInBytes + (copy->dstY + row) * copy->dstPitch;
    const size_t from = copy->srcXInBytes + (copy->srcY + row) * copy->srcPitch;
    const Side target = copy->dstMemoryType == CU_MEMORYTYPE_DEVICE
                            ? Side{.device = copy->dstDevice + to}
                            : Side{.host = static_cast<std::byte*>(copy->dstHost) + to};
    const Side source = copy->srcMemoryType == CU_MEMORYTYPE_DEVICE
                            ? Side{.device = copy->srcDevice + from}
                            : Side{.host = static_cast<std::byte*>(const_cast<void*>(copy->srcHost)) + from};
    const CUresult result = Copy(call, "cuMemcpy2DAsync", target, source, copy->WidthInBytes, stream);
    if (result != CUDA_SUCCESS) return result;
  }
  return CUDA_SUCCESS;
}

EXPORT CUresult cuMemsetD8Async(CUdeviceptr memory, unsigned char value, size_t bytes, CUstream stream) {
  Call call(Text("cuMemsetD8Async ", bytes, " ", Name(stream)));
  if (call.Queues(stream).failed()) return call.result;
  Machine& machine = call.machine;
  const int gpu = stream->context->gpu;
  if (machine.Find(memory, bytes, gpu) == nullptr) {
    return machine.Wrong(CUDA_ERROR_INVALID_VALUE,
                         Text("cuMemsetD8Async of ", bytes, " bytes at ", machine.Place(memory)));
  }
  machine.Enqueue(stream, "cuMemsetD8Async", [=, &machine]() -> CUresult {
    auto lock = machine.Lock();
    std::byte* found = machine.Find(memory, bytes, gpu);
    if (found == nullptr) {
      return machine.Wrong(CUDA_ERROR_ILLEGAL_ADDRESS, "cuMemsetD8Async of " + machine.Place(memory));
    }
    lock.unlock();
    std::memset(found, value, bytes);
    return CUDA_SUCCESS;
  });
  return CUDA_SUCCESS;
}

}  // namespace lockstep::cuda
