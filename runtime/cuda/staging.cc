#include "runtime/cuda/staging.h"

#include <algorithm>
#include <cstring>
#include <utility>

#include "core/status.h"
#include "runtime/process/process.h"

namespace lockstep::cuda {

Staging::Staging(const DriverApi& api, Check check, Await await)
    : api_(api), check_(std::move(check)), await_(std::move(await)), filling_(std::min(kThreads, AvailableCores())) {}

void Staging::Write(Block& block) {
  if (block.host != nullptr) std::memcpy(block.host, block.data, block.bytes);
  block.host = nullptr;
}

absl::StatusOr<Staging::Block*> Staging::Take() {
  Block& block = Oldest();
  if (block.data == nullptr) {
    void* data = nullptr;
    RETURN_IF_ERROR(check_(api_.MemHostAlloc(&data, kBlockBytes, kMemHostAllocPortable), "cuMemHostAlloc of staging"));
    block.data = static_cast<std::byte*>(data);
  }
  if (block.copied == nullptr) {
    RETURN_IF_ERROR(check_(api_.EventCreate(&block.copied, CU_EVENT_DISABLE_TIMING), "cuEventCreate"));
  }
  if (block.used) RETURN_IF_ERROR(await_(block.copied));
  block.used = false;
  Write(block);
  block.number = used_++;
  return &block;
}

absl::Status Staging::CopyToDevice(CUdeviceptr device, const std::byte* host, size_t bytes, CUstream stream) {
  const absl::Status status = QueueToDevice(device, host, bytes, stream);
  filling_.FinishAll();  // the caller may free the memory now
  return status;
}

absl::Status Staging::QueueToDevice(CUdeviceptr device, const std::byte* host, size_t bytes, CUstream stream) {
  constexpr size_t kFilling = kBlocks / 2;  // blocks; the others are being copied to the device meanwhile
  const bool by_threads = bytes >= kLeastForThreads;
  const size_t count = (bytes + kBlockBytes - 1) / kBlockBytes;
  const auto part = [&](size_t i) { return std::min(kBlockBytes, bytes - i * kBlockBytes); };
  std::array<Block*, kFilling> taken;
  for (size_t i = 0, next = 0; i < count; ++i) {
    for (; next < std::min(count, i + (by_threads ? kFilling : 1)); ++next) {
      ASSIGN_OR_RETURN(Block * block, Take());
      taken[next % kFilling] = block;
      const std::byte* const from = host + next * kBlockBytes;
      if (by_threads) filling_.Add(block->data, from, part(next));
      else std::memcpy(block->data, from, part(next));
    }
    if (by_threads) filling_.FinishOldest();
    Block& block = *taken[i % kFilling];
    block.used = true;
    RETURN_IF_ERROR(
        check_(api_.MemcpyHtoDAsync(device + i * kBlockBytes, block.data, part(i), stream), "cuMemcpyHtoDAsync"));
    RETURN_IF_ERROR(check_(api_.EventRecord(block.copied, stream), "cuEventRecord"));
  }
  return absl::OkStatus();
}

absl::Status Staging::CopyToHost(std::byte* host, CUdeviceptr device, size_t bytes, CUstream stream) {
  const uint64_t first = used_;
  absl::Status status = QueueToHost(host, device, bytes, stream);
  if (status.ok()) return status;
  // The caller may free the memory now.
  for (Block& block : blocks_) {
    if (block.number >= first) block.host = nullptr;
  }
  return status;
}

absl::Status Staging::QueueToHost(std::byte* host, CUdeviceptr device, size_t bytes, CUstream stream) {
  for (size_t done = 0; done < bytes; done += kBlockBytes) {
    const size_t part = std::min(kBlockBytes, bytes - done);
    ASSIGN_OR_RETURN(Block * block, Take());
    block->used = true;
    RETURN_IF_ERROR(check_(api_.MemcpyDtoHAsync(block->data, device + done, part, stream), "cuMemcpyDtoHAsync"));
    RETURN_IF_ERROR(check_(api_.EventRecord(block->copied, stream), "cuEventRecord"));
    block->host = host + done;
    block->bytes = part;
  }
  return absl::OkStatus();
}

void Staging::Deliver(uint64_t until) {
  // From the oldest block on, so that of two copies to one address the last one remains.
  for (size_t i = 0; i < kBlocks; ++i) {
    Block& block = Oldest(i);
    if (block.number < until) Write(block);
  }
}

void Staging::Drop() {
  for (Block& block : blocks_) block.host = nullptr;
}

void Staging::Free() {
  for (Block& block : blocks_) {
    if (block.copied != nullptr) (void)api_.EventDestroy(block.copied);
    if (block.data != nullptr) (void)api_.MemFreeHost(block.data);
    block = {};
  }
}

}  // namespace lockstep::cuda
