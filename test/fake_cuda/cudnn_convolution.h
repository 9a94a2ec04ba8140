// A convolution or a gradient of one as the fake cuDNN's descriptors say it.

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

  // Of an operation whose attributes are all set.
  explicit FakeConvolution(const FakeDescriptor& operation);
  static bool IsOne(cudnnBackendDescriptorType_t type);

  // What does not fit together; empty if all does.
  std::string Check() const;
  std::string ToString() const;
  // Requires `data` of the three sides.
  void Run() const;
};

}  // namespace lockstep::cuda
