#include "backends/cuda/preparation.h"

#include <algorithm>
#include <set>

#include "backends/codegen/run_jobs.h"
#include "backends/cuda/gpu.h"
#include "backends/cuda/product_cache.h"
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
  RETURN_IF_ERROR(MakePlans(communicator));
  RETURN_IF_ERROR(ChooseProducts(device, communicator));
  return communicator.size() > 1 ? RunLibrariesOnce(device) : absl::OkStatus();
}

absl::Status Preparation::ChooseProducts(CudaDevice& device, Communicator& communicator) {
  for (const ProductOfOp& each : products_) RETURN_IF_ERROR(Annotate(each.product->Open(), each.op));
  if (!tune_) return TakeFirstChoices(products_);
  if (products_.empty()) return absl::OkStatus();
  const std::string machine = DescribeGpu(device) + ", CUDA driver " + device.api().from.version.ToString() +
                              ", cuBLASLt " + cublaslt_->api().from.version.ToString();
  return TakeFastest(products_, {.machine = machine, .cache = ProductCachePath()}, device, communicator);
}

absl::Status Preparation::RunLibrariesOnce(CudaDevice& device) {
  RETURN_IF_ERROR(RunEachOnce(products_, device));
  std::set<std::string> done;
  for (const Plan& plan : plans_) {
    if (done.insert(plan.choice).second) RETURN_IF_ERROR(Annotate(plan.run_once(device), plan.op));
  }
  return absl::OkStatus();
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
  if (!plans_.empty()) RETURN_IF_ERROR(Annotate(cudnn_->Open(), plans_.front().op));
  return absl::OkStatus();
}

// cuDNN silently omits an engine if it cannot open a library that the engine needs, such as NVRTC.
absl::Status Preparation::MakePlans(Communicator& communicator) {
  std::string chosen;
  for (Plan& plan : plans_) {
    const absl::StatusOr<std::string> made = plan.make();
    if (!made.ok()) return Annotate(made.status(), plan.op);
    plan.choice = *made;
    chosen += plan.op + ": " + plan.choice + "\n";
  }
  if (communicator.size() == 1 || plans_.empty()) return absl::OkStatus();
  return AgreeOnText(communicator, "engines of cuDNN of @" + program_, chosen,
                     "Different engines round differently. Give all ranks the same libraries, including NVRTC, with "
                     "which cuDNN compiles some of its engines; `lockstep doctor` lists the libraries of a rank.");
}

// The GPU and the versions of the libraries determine the chosen algorithms and their rounding.
absl::Status Preparation::AgreeOnLibraries(const CudaDevice& device, Communicator& communicator) const {
  if (communicator.size() == 1 || (products_.empty() && plans_.empty())) return absl::OkStatus();
  std::string text = DescribeGpu(device);
  if (!products_.empty()) text += "\ncuBLASLt " + cublaslt_->api().from.version.ToString();
  if (!plans_.empty()) {
    const LoadedFrom& nvrtc = cudnn_->api().nvrtc;
    text += "\ncuDNN " + cudnn_->api().from.version.ToString() +
            (nvrtc.path.empty() ? " without NVRTC" : " with NVRTC " + nvrtc.version.ToString());
  }
  return AgreeOnText(communicator, "GPUs and their libraries of @" + program_, text,
                     "Products and convolutions of different GPUs or library versions round differently. Give all "
                     "ranks the same GPUs and the same versions of the libraries.");
}

}  // namespace lockstep::cuda
