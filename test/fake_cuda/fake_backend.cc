#include "test/fake_cuda/fake_backend.h"

#include <utility>

#include "backends/cuda/cuda_backend.h"
#include "test/fake_cuda/grid_images.h"
#include "test/fake_cuda/kernel_texts.h"
#include "test/fake_cuda/load.h"

namespace lockstep::cuda {
namespace {

class FakeCudaBackend final : public Backend {
 public:
  explicit FakeCudaBackend(std::unique_ptr<Backend> cuda) : cuda_(std::move(cuda)) {}

  std::string_view name() const override { return "fake-cuda"; }
  absl::StatusOr<Target> MakeTarget(const TargetOptions& options) const override {
    TargetOptions on_h200 = options;
    if (on_h200.isa.empty()) on_h200.isa = "h200";
    return cuda_->MakeTarget(on_h200);
  }
  absl::StatusOr<RankDevice> OpenDevice(Communicator& world) const override { return cuda_->OpenDevice(world); }
  absl::StatusOr<Program> Lower(const Graph& graph, const Target& target) const override {
    return cuda_->Lower(graph, target);
  }

 private:
  const std::unique_ptr<Backend> cuda_;
};

}  // namespace

std::unique_ptr<Backend> CreateFakeCudaBackend(int gpus, KeptContexts* contexts) {
  LoadFakeDriver({.gpus = gpus, .bytes = size_t{256} << 20});
  return std::make_unique<FakeCudaBackend>(CreateCudaBackend(FakeGridImages(), FakeKernelTexts(), contexts));
}

}  // namespace lockstep::cuda
