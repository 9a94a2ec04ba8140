#include "backends/cuda/device_kernel.h"

#include <algorithm>
#include <bit>

#include "backends/cuda/kernels/block.h"
#include "backends/cuda/kernels/order.h"

namespace lockstep::cuda {

absl::Status DeviceKernel::RunWith(CudaStream& stream, int64_t threads, int64_t block, void** parameters) {
  if (threads == 0) return absl::OkStatus();
  if (function_ == nullptr) {
    ASSIGN_OR_RETURN(function_, image_->Find(stream.device(), name_));
  }
  return Launch(stream, function_, {.blocks_x = (threads + block - 1) / block, .threads = block}, parameters);
}

std::string NameFor(std::string_view kernel, uint64_t bytes) {
  return std::string(kernel) + "_b" + std::to_string(bytes);
}

std::string NameFor(std::string_view kernel, DType dtype) {
  return std::string(kernel) + "_" + std::string(DTypeName(dtype));
}

LineSort::LineSort(std::shared_ptr<KernelImage> image, int64_t lines, int64_t length)
    : lines_(lines),
      padded_(static_cast<int64_t>(std::bit_ceil(static_cast<uint64_t>(std::max<int64_t>(length, 1))))),
      tiles_(image, "sort_tiles"),
      step_(image, "sort_step"),
      tail_(image, "sort_tail") {}

absl::Status LineSort::Run(CudaStream& stream, std::byte* scratch) {
  if (padded_ == 1) return absl::OkStatus();
  SortArgs args{KeysIn(scratch), NumbersIn(scratch), total(), padded_, std::min(padded_, kTile), 0};
  const int64_t of_tiles = (total() + kTile - 1) / kTile * kBlock;
  RETURN_IF_ERROR(tiles_.Run(stream, of_tiles, args));
  for (args.block = 2 * kTile; args.block <= padded_; args.block *= 2) {
    for (args.distance = args.block / 2; args.distance >= kTile; args.distance /= 2)
      RETURN_IF_ERROR(step_.Run(stream, total() / 2, args));
    RETURN_IF_ERROR(tail_.Run(stream, of_tiles, args));
  }
  return absl::OkStatus();
}

}  // namespace lockstep::cuda
