// A ring of pinned memory through which a device copies from or to memory of the host that is the caller's: that is
// read before a copy is queued, and written after it is done, by the device's thread. Called by CudaDevice alone, which
// has one for each direction: copies to the device, which run ahead, do not wait for the memory of those to the host.

#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <functional>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "runtime/cuda/driver.h"

namespace lockstep::cuda {

class Staging {
 public:
  static constexpr size_t kBlocks = 16;
  static constexpr size_t kBlockBytes = size_t{2} << 20;

  // How calls of the driver become errors of the device, and how it waits for an event.
  using Check = std::function<absl::Status(CUresult result, const char* call)>;
  using Await = std::function<absl::Status(CUevent event)>;

  Staging(const DriverApi& api, Check check, Await await)
      : api_(api), check_(std::move(check)), await_(std::move(await)) {}
  Staging(const Staging&) = delete;
  Staging& operator=(const Staging&) = delete;

  // Queue copies in `stream`. Both wait for the copy that was queued kBlocks blocks before. After an error of
  // CopyToHost nothing more of this copy is written.
  absl::Status CopyToDevice(CUdeviceptr device, const std::byte* host, size_t bytes, CUstream stream);
  absl::Status CopyToHost(std::byte* host, CUdeviceptr device, size_t bytes, CUstream stream);

  // How many blocks copies have used so far.
  uint64_t used() const { return used_; }
  // Writes into memory of the host what is left to write of the first `until` blocks, whose copies are done.
  void Deliver(uint64_t until);
  // Forgets what is left to write.
  void Drop();
  // Frees the ring. No copy is queued.
  void Free();

 private:
  struct Block {
    std::byte* data = nullptr;
    CUevent copied = nullptr;
    bool used = false;
    uint64_t number = 0;        // of its use: the first is 0
    std::byte* host = nullptr;  // where the bytes are to be written
    size_t bytes = 0;
  };

  // The block that was used the longest ago comes first.
  Block& Oldest(size_t i = 0) { return blocks_[(used_ + i) % kBlocks]; }
  absl::StatusOr<Block*> Take();
  absl::Status QueueToHost(std::byte* host, CUdeviceptr device, size_t bytes, CUstream stream);
  static void Write(Block& block);

  const DriverApi& api_;
  const Check check_;
  const Await await_;
  std::array<Block, kBlocks> blocks_;
  uint64_t used_ = 0;
};

}  // namespace lockstep::cuda
