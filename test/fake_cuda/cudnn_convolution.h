// A convolution, or a gradient of one, as described by descriptors of the fake cuDNN.

#pragma once

#include <string>
#include <vector>

#include "core/dtype.h"
#include "test/fake_cuda/cudnn_descriptors.h"

namespace lockstep::cuda {

struct FakeTensor {
  std::vector<int64_t> dims, strides;
  DType dtype;
  int64_t id = 0, alignment = 1;
  std::byte* data = nullptr;

  explicit FakeTensor(const FakeDescriptor& descriptor);
  size_t span() const;  // bytes from the first element to the last
  bool is_channels_last() const { return strides[1] == 1 && strides.back() > 1; }
};

struct FakeConvolution {
  enum class Kind { kForward, kGradInput, kGradFilter };

  Kind kind;
  FakeTensor x, filter, y;
  std::vector<int64_t> padding_low, padding_high, stride, dilation;
  cudnnDataType_t compute;
  cudnnConvolutionMode_t mode;
  double alpha, beta;
  FakeEngine engine;

  // Requires an operation whose attributes are all set.
  explicit FakeConvolution(const FakeDescriptor& operation);
  static bool IsOne(cudnnBackendDescriptorType_t type);

  // Returns a description of what does not fit together, or "".
  std::string Check() const;
  // True if cuDNN documents that kernels for tensor cores take the tensors: all are row-major, which it pads and
  // transposes itself, or all are channels-last, with channels in each group that fill units of 16 bytes, at addresses
  // aligned to 16 bytes. Of 16 bits, x may have any number of channels in one group: cuDNN 9.14 pads them, as was seen
  // on an H200.
  bool FitsTensorCores() const;
  std::string ToString() const;
  // Requires that `data` of the three sides is set.
  void Run() const;
};

}  // namespace lockstep::cuda
