// The work that a program does once on its GPU when it is loaded (Executable::prepare): compiles the images of its
// kernels to machine code, on several threads, makes the plans of its convolutions, and chooses the algorithms of its
// products. Filled while a graph and the bodies of its loops, which share it, are lowered; it lives as long as the
// program. One thread at a time may use it.

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
  // `program` is its name, for messages; `gpu` is the GPU that it is compiled for. `tune`: products use the fastest
  // algorithm, else the library's first choice.
  Preparation(std::string program, GpuDescription gpu, bool tune)
      : program_(std::move(program)), gpu_(std::move(gpu)), tune_(tune) {}
  Preparation(const Preparation&) = delete;
  Preparation& operator=(const Preparation&) = delete;

  // Shared by the program's kernels that use these libraries.
  const std::shared_ptr<CudnnHandle>& cudnn() const { return cudnn_; }
  const std::shared_ptr<CublasLtHandle>& cublaslt() const { return cublaslt_; }

  // Adds an image to be loaded, with this kernel of it; an empty name means that the kernels are not known by name.
  // `op` is the op that runs it, for messages.
  void AddKernel(const std::shared_ptr<KernelImage>& image, const std::string& kernel, const std::string& op);
  // Adds a cuDNN plan. `make` is called with cuDNN open and returns a line that describes the choice. `run_once` is
  // then called if the program has several ranks: it runs the plan on memory of its own and waits for it.
  void AddPlan(std::function<absl::StatusOr<std::string>()> make, std::function<absl::Status(CudaDevice&)> run_once,
               const std::string& op) {
    plans_.push_back({std::move(make), std::move(run_once), op, {}});
  }
  void AddProduct(std::shared_ptr<Product> product, const std::string& op) {
    products_.push_back({std::move(product), op});
  }

  // All ranks of the communicator must call it, with their devices.
  absl::Status Run(CudaDevice& device, Communicator& communicator);

 private:
  struct Kernel {
    std::string name, op;
  };
  struct Image {
    std::shared_ptr<KernelImage> image;
    std::string op;               // the first op that uses it
    std::vector<Kernel> kernels;  // the kernels that are known by name
    absl::Status status;          // of loading it
  };
  struct Plan {
    std::function<absl::StatusOr<std::string>()> make;
    std::function<absl::Status(CudaDevice&)> run_once;
    std::string op;
    std::string choice;  // the problem and its engine, as `make` has returned them
  };

  absl::Status LoadImages(CudaDevice& device);
  static absl::Status LoadImage(CudaDevice& device, const Image& image);
  absl::Status OpenLibraries();
  // Makes the plans of convolutions, and checks that all ranks chose the same engines.
  absl::Status MakePlans(Communicator& communicator);
  absl::Status ChooseProducts(CudaDevice& device, Communicator& communicator);
  // Lets the libraries load their kernels, which they do when a kernel first runs. That may wait for the whole GPU, and
  // so forever if a collective runs there whose peer waits likewise (https://github.com/openxla/xla/pull/38932).
  absl::Status RunLibrariesOnce(CudaDevice& device);
  absl::Status AgreeOnLibraries(const CudaDevice& device, Communicator& communicator) const;

  const std::string program_;
  const GpuDescription gpu_;
  const bool tune_;
  const std::shared_ptr<CudnnHandle> cudnn_ = std::make_shared<CudnnHandle>("cudnnCreate");
  const std::shared_ptr<CublasLtHandle> cublaslt_ = std::make_shared<CublasLtHandle>("cublasLtCreate");
  std::vector<Image> images_;  // each once, in the order in which they were added
  std::map<const KernelImage*, size_t> places_;
  std::vector<Plan> plans_;
  std::vector<ProductOfOp> products_;
};

}  // namespace lockstep::cuda
