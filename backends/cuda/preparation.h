// The work that a program does once on its GPU when it is loaded (Executable::prepare): compiles the images of its
// kernels to machine code, on several threads, and chooses the engines of its convolutions and the algorithms of its
// products. Filled while a graph and the bodies of its loops, which share it, are lowered; it lives as long as the
// program. One thread at a time may use it.

#pragma once

#include <map>
#include <memory>
#include <string>
#include <vector>

#include "backends/backend.h"
#include "backends/cuda/cudnn_graph.h"
#include "backends/cuda/kernel_image.h"
#include "backends/cuda/product.h"
#include "backends/cuda/tuning.h"
#include "runtime/communicator.h"

namespace lockstep::cuda {

class Preparation {
 public:
  // `program` is its name, for messages; `gpu` is the GPU that it is compiled for. `tune`: products and convolutions
  // are computed in the fastest way, else in the libraries' first.
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
  void AddConvolution(std::shared_ptr<Tunable> problem, const std::string& op) {
    convolutions_.push_back({std::move(problem), op});
  }
  void AddProduct(std::shared_ptr<Tunable> problem, const std::string& op) {
    products_.push_back({std::move(problem), op});
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

  absl::Status LoadImages(CudaDevice& device);
  static absl::Status LoadImage(CudaDevice& device, const Image& image);
  absl::Status OpenLibraries();
  // `library` is that of the problems, with its version.
  absl::Status Choose(const std::vector<TunableOfOp>& problems, const std::string& library, CudaDevice& device,
                      Communicator& communicator);
  // Checks that all ranks chose the same engines.
  absl::Status AgreeOnEngines(Communicator& communicator) const;
  // Lets the libraries load their kernels, which they do when a kernel first runs. That may wait for the whole GPU, and
  // so forever if a collective runs there whose peer waits likewise (https://github.com/openxla/xla/pull/38932).
  absl::Status RunLibrariesOnce(CudaDevice& device);
  absl::Status AgreeOnLibraries(const CudaDevice& device, Communicator& communicator) const;
  // "cuDNN 9.19.0 with NVRTC 13.0.1", with which cuDNN compiles some of its engines. Empty if the program does not use
  // the library.
  std::string CublasLtVersion() const;
  std::string CudnnVersion() const;

  const std::string program_;
  const GpuDescription gpu_;
  const bool tune_;
  const std::shared_ptr<CudnnHandle> cudnn_ = std::make_shared<CudnnHandle>("cudnnCreate");
  const std::shared_ptr<CublasLtHandle> cublaslt_ = std::make_shared<CublasLtHandle>("cublasLtCreate");
  std::vector<Image> images_;  // each once, in the order in which they were added
  std::map<const KernelImage*, size_t> places_;
  std::vector<TunableOfOp> convolutions_, products_;
};

}  // namespace lockstep::cuda
