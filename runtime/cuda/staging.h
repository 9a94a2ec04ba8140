// A ring of pinned memory for copies between a device and ordinary host memory of the caller. The device's thread reads
// the host memory before a copy is queued, and writes it after the copy is done. Used only by CudaDevice, which has one
// for each direction: copies to the device, which run ahead, do not wait for the memory of copies to the host.

#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <functional>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "runtime/cuda/driver.h"
#include "runtime/cuda/host_copies.h"

namespace lockstep::cuda {

class Staging {
 public:
  static constexpr size_t kBlocks = 16;
  static constexpr size_t kBlockBytes = size_t{2} << 20;
  // A copy to the device of at least so many bytes is read by several threads: at most kThreads, and the cores that the
  // process may use. Waking them takes longer than a smaller copy.
  static constexpr size_t kLeastForThreads = size_t{1} << 20;
  static constexpr int kThreads = 8;

  // Functions of the device that turn driver results into errors, and that wait for an event.
  using Check = std::function<absl::Status(CUresult result, const char* call)>;
  using Await = std::function<absl::Status(CUevent event)>;

  Staging(const DriverApi& api, Check check, Await await);
  Staging(const Staging&) = delete;
  Staging& operator=(const Staging&) = delete;

  // Queue copies in `stream`. Both wait for the copy that was queued kBlocks blocks before. CopyToDevice queues each
  // block as soon as it is filled, and no longer reads the host memory when it returns, also after an error. After an
  // error of CopyToHost, the rest of this copy is not written.
  absl::Status CopyToDevice(CUdeviceptr device, const std::byte* host, size_t bytes, CUstream stream);
  absl::Status CopyToHost(std::byte* host, CUdeviceptr device, size_t bytes, CUstream stream);

  // the number of blocks that copies have used so far
  uint64_t used() const { return used_; }
  // Writes the pending bytes of the first `until` blocks to host memory. Their copies must be done.
  void Deliver(uint64_t until);
  // Discards the pending bytes.
  void Drop();
  // Frees the ring. Requires that no copy is queued.
  void Free();

 private:
  struct Block {
    std::byte* data = nullptr;
    CUevent copied = nullptr;
    bool used = false;
    uint64_t number = 0;        // the number of its use, from 0
    std::byte* host = nullptr;  // the target of the pending bytes
    size_t bytes = 0;
  };

  // The least recently used block comes first.
  Block& Oldest(size_t i = 0) { return blocks_[(used_ + i) % kBlocks]; }
  absl::StatusOr<Block*> Take();
  absl::Status QueueToDevice(CUdeviceptr device, const std::byte* host, size_t bytes, CUstream stream);
  absl::Status QueueToHost(std::byte* host, CUdeviceptr device, size_t bytes, CUstream stream);
  static void Write(Block& block);

  const DriverApi& api_;
  const Check check_;
  const Await await_;
  std::array<Block, kBlocks> blocks_;
  uint64_t used_ = 0;
  HostCopies filling_;  // of blocks that copies to the device have taken and not queued
};

}  // namespace lockstep::cuda
