// What a program does once on its GPU when it is loaded (Executable::prepare): the images of its kernels become machine
// code, on several threads at once, its convolutions get their plans, and its products their algorithms. Filled while a
// graph is lowered, the bodies of its loops included, which share it; it lives as long as the program. One thread at a
// time.

#pragma once

#include <functional>
#include <map>
#include <memory>
#include <string>
#include <vector>

#include "backends/backend.h"
#include "backends/cuda/cudnn_graph.h"
#include "backends/cuda/kernel_image.h"
#include "backends/cuda/product.h"
#include "backends/cuda/product_choice.h"
#include "runtime/communicator.h"

namespace lockstep::cuda {

class Preparation {
 public:
  // `program` is its name, for messages; `gpu` what it is compiled for. `tune`: products take the fastest algorithm,
  // else the library's first choice.
  Preparation(std::string program, GpuDescription gpu, bool tune)
      : program_(std::move(program)), gpu_(std::move(gpu)), tune_(tune) {}
  Preparation(const Preparation&) = delete;
  Preparation& operator=(const Preparation&) = delete;

  // Shared by the program's kernels over these libraries.
  const std::shared_ptr<CudnnHandle>& cudnn() const { return cudnn_; }
  const std::shared_ptr<CublasLtHandle>& cublaslt() const { return cublaslt_; }

  // The image is to be loaded, with this kernel of it; empty: with whichever it is used for. `op` runs it: what
  // messages call it.
  void AddKernel(const std::shared_ptr<KernelImage>& image, const std::string& kernel, const std::string& op);
  // A plan over cuDNN, which is open when `make` is called; that returns what was chosen, in a line.
  void AddPlan(std::function<absl::StatusOr<std::string>()> make, const std::string& op) {
    plans_.push_back({std::move(make), op});
  }
  void AddProduct(std::shared_ptr<Product> product, const std::string& op) {
    products_.push_back({std::move(product), op});
  }

  // All ranks of the communicator call it, with their devices.
  absl::Status Run(CudaDevice& device, Communicator& communicator);

 private:
  struct Kernel {
    std::string name, op;
  };
  struct Image {
    std::shared_ptr<KernelImage> image;
    std::string op;               // the first that uses it
    std::vector<Kernel> kernels;  // that are known by name
    absl::Status status;          // of its loading
  };
  struct Plan {
    std::function<absl::StatusOr<std::string>()> make;
    std::string op;
  };

  absl::Status LoadImages(CudaDevice& device);
  static absl::Status LoadImage(CudaDevice& device, const Image& image);
  absl::Status OpenLibraries();
  // Convolutions get their plans, of the same engines on all ranks.
  absl::Status MakePlans(Communicator& communicator);
  absl::Status AgreeOnLibraries(const CudaDevice& device, Communicator& communicator) const;

  const std::string program_;
  const GpuDescription gpu_;
  const bool tune_;
  const std::shared_ptr<CudnnHandle> cudnn_ = std::make_shared<CudnnHandle>("cudnnCreate");
  const std::shared_ptr<CublasLtHandle> cublaslt_ = std::make_shared<CublasLtHandle>("cublasLtCreate");
  std::vector<Image> images_;  // each once, in the order in which they came
  std::map<const KernelImage*, size_t> places_;
  std::vector<Plan> plans_;
  std::vector<ProductOfOp> products_;
};

}  // namespace lockstep::cuda
