#include "backends/cuda/preparation.h"

#include <algorithm>

#include "backends/codegen/run_jobs.h"
#include "backends/cuda/choice_cache.h"
#include "backends/cuda/gpu.h"
#include "core/status.h"
#include "runtime/execution/agreement.h"

namespace lockstep::cuda {

void Preparation::AddKernel(const std::shared_ptr<KernelImage>& image, const std::string& kernel,
                            const std::string& op) {
  const auto [place, is_new] = places_.emplace(image.get(), images_.size());
  if (is_new) images_.push_back({image, op, {}, absl::OkStatus()});
  if (kernel.empty()) return;
  std::vector<Kernel>& kernels = images_[place->second].kernels;
  const auto same = [&](const Kernel& other) { return other.name == kernel; };
  if (std::none_of(kernels.begin(), kernels.end(), same)) kernels.push_back({kernel, op});
}

absl::Status Preparation::Run(CudaDevice& device, Communicator& communicator) {
  RETURN_IF_ERROR(device.MakeCurrent());
  RETURN_IF_ERROR(CheckRunsOn(device, gpu_, program_));
  RETURN_IF_ERROR(LoadImages(device));
  RETURN_IF_ERROR(OpenLibraries());
  RETURN_IF_ERROR(AgreeOnLibraries(device, communicator));
  RETURN_IF_ERROR(Choose(convolutions_, CudnnVersion(), device, communicator));
  RETURN_IF_ERROR(AgreeOnEngines(communicator));
  RETURN_IF_ERROR(Choose(products_, CublasLtVersion(), device, communicator));
  return communicator.size() > 1 ? RunLibrariesOnce(device) : absl::OkStatus();
}

absl::Status Preparation::Choose(const std::vector<TunableOfOp>& problems, const std::string& library,
                                 CudaDevice& device, Communicator& communicator) {
  for (const TunableOfOp& each : problems) RETURN_IF_ERROR(Annotate(each.problem->Open(), each.op));
  if (problems.empty() || !tune_) return TakeFirstChoices(problems);
  const std::string machine =
      DescribeGpu(device) + ", CUDA driver " + device.api().from.version.ToString() + ", " + library;
  return TakeFastest(problems, {.machine = machine, .cache = ChoiceCachePath()}, device, communicator);
}

absl::Status Preparation::RunLibrariesOnce(CudaDevice& device) {
  RETURN_IF_ERROR(RunEachOnce(products_, device));
  return RunEachOnce(convolutions_, device);
}

// The driver compiles an image when it is loaded, on the calling thread.
absl::Status Preparation::LoadImages(CudaDevice& device) {
  RunJobs(images_.size(), [&](const std::function<size_t()>& next) {
    const DriverApi& api = device.api();
    const absl::Status entered = api.Check(api.CtxSetCurrent(device.context()), "cuCtxSetCurrent");
    for (size_t i = next(); i < images_.size(); i = next()) {
      images_[i].status = entered.ok() ? LoadImage(device, images_[i]) : entered;
    }
  });
  for (const Image& image : images_) RETURN_IF_ERROR(image.status);
  return absl::OkStatus();
}

absl::Status Preparation::LoadImage(CudaDevice& device, const Image& image) {
  const std::string op =
      image.kernels.empty() ? image.op : image.kernels.front().op + ": kernel " + image.kernels.front().name;
  RETURN_IF_ERROR(Annotate(image.image->Load(device), op));
  for (const Kernel& kernel : image.kernels) {
    RETURN_IF_ERROR(Annotate(image.image->Find(device, kernel.name).status(), kernel.op));
  }
  return absl::OkStatus();
}

absl::Status Preparation::OpenLibraries() {
  if (!products_.empty()) RETURN_IF_ERROR(Annotate(cublaslt_->Open(), products_.front().op));
  if (!convolutions_.empty()) RETURN_IF_ERROR(Annotate(cudnn_->Open(), convolutions_.front().op));
  return absl::OkStatus();
}

// cuDNN silently omits an engine if it cannot open a library that the engine needs, such as NVRTC.
absl::Status Preparation::AgreeOnEngines(Communicator& communicator) const {
  if (communicator.size() == 1 || convolutions_.empty()) return absl::OkStatus();
  std::string chosen;
  for (const TunableOfOp& each : convolutions_) chosen += each.op + ": " + each.problem->taken() + "\n";
  return AgreeOnText(communicator, "engines of cuDNN of @" + program_, chosen,
                     "Different engines round differently. Give all ranks the same libraries, including NVRTC, with "
                     "which cuDNN compiles some of its engines; `lockstep doctor` lists the libraries of a rank.");
}

std::string Preparation::CublasLtVersion() const {
  return products_.empty() ? "" : "cuBLASLt " + cublaslt_->api().from.version.ToString();
}

std::string Preparation::CudnnVersion() const {
  if (convolutions_.empty()) return "";
  const LoadedFrom& nvrtc = cudnn_->api().nvrtc;
  return "cuDNN " + cudnn_->api().from.version.ToString() +
         (nvrtc.path.empty() ? " without NVRTC" : " with NVRTC " + nvrtc.version.ToString());
}

// The GPU and the versions of the libraries determine the chosen algorithms and their rounding.
absl::Status Preparation::AgreeOnLibraries(const CudaDevice& device, Communicator& communicator) const {
  if (communicator.size() == 1 || (products_.empty() && convolutions_.empty())) return absl::OkStatus();
  std::string text = DescribeGpu(device);
  for (const std::string& library : {CublasLtVersion(), CudnnVersion()}) {
    if (!library.empty()) text += "\n" + library;
  }
  return AgreeOnText(communicator, "GPUs and their libraries of @" + program_, text,
                     "Products and convolutions of different GPUs or library versions round differently. Give all "
                     "ranks the same GPUs and the same versions of the libraries.");
}

}  // namespace lockstep::cuda
