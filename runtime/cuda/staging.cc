#include "runtime/cuda/staging.h"

#include <algorithm>
#include <cstring>
#include <utility>

#include "core/status.h"

namespace lockstep::cuda {

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
  for (size_t done = 0; done < bytes; done += kBlockBytes) {
    const size_t part = std::min(kBlockBytes, bytes - done);
    ASSIGN_OR_RETURN(Block * block, Take());
    std::memcpy(block->data, host + done, part);
    block->used = true;
    RETURN_IF_ERROR(check_(api_.MemcpyHtoDAsync(device + done, block->data, part, stream), "cuMemcpyHtoDAsync"));
    RETURN_IF_ERROR(check_(api_.EventRecord(block->copied, stream), "cuEventRecord"));
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
