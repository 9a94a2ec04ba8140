#include "backends/cuda/kernel_image.h"

#include <algorithm>
#include <limits>

#include "backends/cuda/ptx_version.h"

namespace lockstep::cuda {

KernelImage::~KernelImage() {
  if (module_ != nullptr) (void)api_->ModuleUnload(module_);
}

absl::Status KernelImage::Load(CudaDevice& device) {
  if (module_ != nullptr) return absl::OkStatus();
  api_ = &device.api();
  RETURN_IF_ERROR(CheckReads(*api_, *text_));
  std::array<char, 4096> log = {};
  CUjit_option names[] = {CU_JIT_ERROR_LOG_BUFFER, CU_JIT_ERROR_LOG_BUFFER_SIZE_BYTES};
  void* values[] = {log.data(), reinterpret_cast<void*>(log.size())};
  const absl::Status status =
      api_->Check(api_->ModuleLoadDataEx(&module_, text_->c_str(), 2, names, values), "cuModuleLoadDataEx");
  if (status.ok()) return absl::OkStatus();
  module_ = nullptr;
  const std::string said(log.data(), std::find(log.begin(), log.end(), '\0'));
  return said.empty() ? status : Annotate(status, "the driver's compiler: " + said);
}

absl::StatusOr<CUfunction> KernelImage::Find(CudaDevice& device, const std::string& kernel) {
  RETURN_IF_ERROR(Load(device));
  CUfunction function = nullptr;
  RETURN_IF_ERROR(
      api_->Check(api_->ModuleGetFunction(&function, module_, kernel.c_str()), "cuModuleGetFunction of " + kernel));
  if (api_->FuncLoad != nullptr) {
    RETURN_IF_ERROR(api_->Check(api_->FuncLoad(function), "cuFuncLoad of " + kernel));
    return function;
  }
  int registers = 0;  // only a loaded kernel has attributes
  RETURN_IF_ERROR(api_->Check(api_->FuncGetAttribute(&registers, CU_FUNC_ATTRIBUTE_NUM_REGS, function),
                              "cuFuncGetAttribute of " + kernel));
  return function;
}

absl::Status Launch(CudaStream& stream, CUfunction kernel, const Grid& grid, void** parameters) {
  if (grid.blocks_x <= 0 || grid.blocks_y <= 0) return absl::OkStatus();
  constexpr int64_t kMaxX = std::numeric_limits<int32_t>::max(), kMaxY = 65535;
  if (grid.blocks_x > kMaxX || grid.blocks_y > kMaxY) {
    return InvalidArgument() << "a grid of " << grid.blocks_x << " x " << grid.blocks_y << " blocks: a GPU has at most "
                             << kMaxX << " x " << kMaxY;
  }
  CudaDevice& device = stream.device();
  RETURN_IF_ERROR(device.WaitForQueueSpace());
  return device.Check(
      device.api().LaunchKernel(kernel, static_cast<unsigned>(grid.blocks_x), static_cast<unsigned>(grid.blocks_y), 1,
                                static_cast<unsigned>(grid.threads), 1, 1, 0, stream.handle(), parameters, nullptr),
      "cuLaunchKernel");
}

}  // namespace lockstep::cuda
