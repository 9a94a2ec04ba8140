// The fake cuDNN refuses calls that the graph API forbids, so a test on it would find our misuse.

#include <chrono>
#include <thread>

#include "backends/cuda/cudnn_graph.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "runtime/cuda/device.h"
#include "test/fake_cuda/load.h"
#include "test/fake_cuda/run.h"

namespace lockstep::cuda {
namespace {

using testing::AllOf;
using testing::ElementsAre;
using testing::HasSubstr;
using testing::IsEmpty;

using List = std::vector<int64_t>;

class FakeCudnnTest : public testing::Test {
 protected:
  void SetUp() override {
    fake_.ResetEngines();
    device_ = CudaDevice::Create(driver_.api, 0).value();
    ASSERT_TRUE(cudnn_.Open().ok());
    fake_.TakeMisuse();
  }
  const CudnnApi& api() const { return cudnn_.api(); }

  // A tensor of f32, with all attributes but `without`.
  CudnnDescriptor Tensor(int64_t id, const List& dims, const List& strides, int without = -1) {
    CudnnDescriptor tensor(api(), CUDNN_BACKEND_TENSOR_DESCRIPTOR, "a tensor");
    if (without != CUDNN_ATTR_TENSOR_DATA_TYPE)
      tensor.Set(CUDNN_ATTR_TENSOR_DATA_TYPE, CUDNN_TYPE_DATA_TYPE, CUDNN_DATA_FLOAT);
    if (without != CUDNN_ATTR_TENSOR_DIMENSIONS) tensor.Set(CUDNN_ATTR_TENSOR_DIMENSIONS, dims);
    if (without != CUDNN_ATTR_TENSOR_STRIDES) tensor.Set(CUDNN_ATTR_TENSOR_STRIDES, strides);
    if (without != CUDNN_ATTR_TENSOR_UNIQUE_ID) tensor.Set(CUDNN_ATTR_TENSOR_UNIQUE_ID, CUDNN_TYPE_INT64, id);
    if (without != CUDNN_ATTR_TENSOR_BYTE_ALIGNMENT)
      tensor.Set(CUDNN_ATTR_TENSOR_BYTE_ALIGNMENT, CUDNN_TYPE_INT64, int64_t{16});
    return tensor;
  }
  CudnnDescriptor Final(CudnnDescriptor tensor) {
    EXPECT_TRUE(tensor.Finalize().ok());
    return tensor;
  }
  CudnnDescriptor Window(const List& padding, const List& strides) {
    CudnnDescriptor window(api(), CUDNN_BACKEND_CONVOLUTION_DESCRIPTOR, "the window");
    window.Set(CUDNN_ATTR_CONVOLUTION_COMP_TYPE, CUDNN_TYPE_DATA_TYPE, CUDNN_DATA_FLOAT)
        .Set(CUDNN_ATTR_CONVOLUTION_CONV_MODE, CUDNN_TYPE_CONVOLUTION_MODE, CUDNN_CROSS_CORRELATION)
        .Set(CUDNN_ATTR_CONVOLUTION_SPATIAL_DIMS, CUDNN_TYPE_INT64, int64_t{2})
        .Set(CUDNN_ATTR_CONVOLUTION_PRE_PADDINGS, padding)
        .Set(CUDNN_ATTR_CONVOLUTION_POST_PADDINGS, padding)
        .Set(CUDNN_ATTR_CONVOLUTION_FILTER_STRIDES, strides)
        .Set(CUDNN_ATTR_CONVOLUTION_DILATIONS, List{1, 1});
    return window;
  }
  CudnnDescriptor Forward(const CudnnDescriptor& x, const CudnnDescriptor& w, const CudnnDescriptor& y,
                          const CudnnDescriptor& window) {
    CudnnDescriptor operation(api(), CUDNN_BACKEND_OPERATION_CONVOLUTION_FORWARD_DESCRIPTOR, "the operation");
    operation.Set(CUDNN_ATTR_OPERATION_CONVOLUTION_FORWARD_X, x)
        .Set(CUDNN_ATTR_OPERATION_CONVOLUTION_FORWARD_W, w)
        .Set(CUDNN_ATTR_OPERATION_CONVOLUTION_FORWARD_Y, y)
        .Set(CUDNN_ATTR_OPERATION_CONVOLUTION_FORWARD_CONV_DESC, window)
        .Set(CUDNN_ATTR_OPERATION_CONVOLUTION_FORWARD_ALPHA, CUDNN_TYPE_FLOAT, 1.0f)
        .Set(CUDNN_ATTR_OPERATION_CONVOLUTION_FORWARD_BETA, CUDNN_TYPE_FLOAT, 0.0f);
    return operation;
  }
  // The text of the last refusal.
  std::string Refused(const absl::Status& status) {
    EXPECT_FALSE(status.ok());
    const std::vector<std::string> misuse = fake_.TakeMisuse();
    return misuse.empty() ? "" : misuse.back();
  }

  LoadedFakeDriver driver_ = LoadFakeDriver();
  FakeCudnn& fake_ = TheFakeCudnn();
  std::unique_ptr<CudaDevice> device_;
  CudnnHandle cudnn_{"cudnnCreate"};
};

TEST_F(FakeCudnnTest, AttributesOfAnotherTypeKindOrCount) {
  EXPECT_THAT(
      Refused(
          Tensor(1, {1, 1, 1, 1}, {1, 1, 1, 1}).Set(CUDNN_ATTR_TENSOR_UNIQUE_ID, CUDNN_TYPE_FLOAT, 1.0f).Finalize()),
      HasSubstr("type 4 is not its type"));
  EXPECT_THAT(Refused(Tensor(1, {1, 1, 1, 1}, {1, 1, 1, 1})
                          .Set(CUDNN_ATTR_CONVOLUTION_SPATIAL_DIMS, CUDNN_TYPE_INT64, int64_t{2})
                          .Finalize()),
              HasSubstr("this kind of descriptor does not have it"));
  EXPECT_THAT(Refused(Tensor(1, {1, 1, 1, 1}, {1, 1, 1, 1}).Set(CUDNN_ATTR_TENSOR_UNIQUE_ID, List{1, 2}).Finalize()),
              HasSubstr("2 elements"));
  EXPECT_THAT(Refused(Tensor(1, {1, 1, 1, 1}, {1, 1, 1}).Finalize()),
              HasSubstr("strides and dimensions differ in number"));
  EXPECT_THAT(Refused(Window({1}, {1, 1}).Finalize()), HasSubstr("not one value for each spatial dimension"));
  EXPECT_THAT(Refused(Window({1, 1}, {1, 0}).Finalize()), HasSubstr("too small"));
}

TEST_F(FakeCudnnTest, AttributesThatAreMissing) {
  for (int name : {CUDNN_ATTR_TENSOR_DATA_TYPE, CUDNN_ATTR_TENSOR_DIMENSIONS, CUDNN_ATTR_TENSOR_STRIDES,
                   CUDNN_ATTR_TENSOR_UNIQUE_ID, CUDNN_ATTR_TENSOR_BYTE_ALIGNMENT}) {
    EXPECT_EQ(Refused(Tensor(1, {1, 1, 1, 1}, {1, 1, 1, 1}, name).Finalize()),
              "attribute " + std::to_string(name) + " is missing");
  }
}

TEST_F(FakeCudnnTest, TheOrderOfCalls) {
  CudnnDescriptor early = Tensor(1, {1, 1, 1, 1}, {1, 1, 1, 1});
  CudnnDescriptor w = Final(Tensor(2, {1, 1, 1, 1}, {1, 1, 1, 1})), y = Final(Tensor(3, {1, 1, 1, 1}, {1, 1, 1, 1}));
  CudnnDescriptor window = Final(Window({0, 0}, {1, 1}));
  EXPECT_THAT(Refused(Forward(early, w, y, window).Finalize()), HasSubstr("a descriptor that is not final"));
  EXPECT_THAT(Refused(Forward(window, w, y, window).Finalize()), HasSubstr("a descriptor of another kind"));
  EXPECT_THAT(Refused(w.Set(CUDNN_ATTR_TENSOR_UNIQUE_ID, CUDNN_TYPE_INT64, int64_t{4}).Finalize()),
              HasSubstr("the descriptor is final"));
  CudnnDescriptor plan(api(), CUDNN_BACKEND_EXECUTION_PLAN_DESCRIPTOR, "the plan");
  int64_t bytes = 0;
  EXPECT_THAT(Refused(plan.Get(CUDNN_ATTR_EXECUTION_PLAN_WORKSPACE_SIZE, CUDNN_TYPE_INT64, 1, &bytes).status()),
              HasSubstr("an unfinalized descriptor is read"));
}

TEST_F(FakeCudnnTest, OperationsThatDoNotFitTogether) {
  const CudnnDescriptor window = Final(Window({0, 0}, {1, 1}));
  const CudnnDescriptor x = Final(Tensor(1, {1, 2, 3, 3}, {18, 9, 3, 1})),
                        w = Final(Tensor(2, {1, 2, 2, 2}, {8, 4, 2, 1}));
  const CudnnDescriptor y = Final(Tensor(3, {1, 1, 2, 2}, {4, 4, 2, 1}));
  CudnnDescriptor fits = Forward(x, w, y, window);
  EXPECT_TRUE(fits.Finalize().ok());
  EXPECT_THAT(Refused(Forward(x, w, Final(Tensor(3, {1, 1, 2, 3}, {6, 6, 3, 1})), window).Finalize()),
              HasSubstr("y does not have the extents"));
  EXPECT_THAT(Refused(Forward(x, Final(Tensor(2, {1, 3, 2, 2}, {12, 4, 2, 1})), y, window).Finalize()),
              HasSubstr("the channels do not divide into groups"));
  EXPECT_THAT(Refused(Forward(x, w, Final(Tensor(2, {1, 1, 2, 2}, {4, 4, 2, 1})), window).Finalize()),
              HasSubstr("ids of tensors are equal"));
}

// Channels-last tensors of f32 whose channels fill units of 16 bytes, and what does not.
TEST_F(FakeCudnnTest, TensorCoresTakeChannelsLastTensorsAsDocumented) {
  fake_.SetEngines(CUDNN_HEUR_MODE_A,
                   {{.index = 7, .notes = {CUDNN_NUMERICAL_NOTE_TENSOR_CORE}}, {.index = 3, .notes = {}}});
  const CudnnDescriptor window = Final(Window({0, 0}, {1, 1}));
  const auto engine = [&](int64_t channels, const List& y_strides) {
    const CudnnDescriptor x = Final(Tensor(1, {1, channels, 3, 3}, {9 * channels, 1, 3 * channels, channels})),
                          w = Final(Tensor(2, {4, channels, 2, 2}, {4 * channels, 1, 2 * channels, channels})),
                          y = Final(Tensor(3, {1, 4, 2, 2}, y_strides)), operation = Final(Forward(x, w, y, window));
    return PlansFor(cudnn_, operation, {.workspace_bytes = 4096}, 1, "")->front().choice;
  };
  EXPECT_EQ(engine(8, {16, 1, 8, 4}), "mode A, number 1, engine 7");
  EXPECT_EQ(engine(6, {16, 1, 8, 4}), "mode A, number 2, engine 3");
  EXPECT_EQ(engine(8, {16, 4, 2, 1}), "mode A, number 2, engine 3");  // a row-major result
}

class FakeCudnnRunTest : public FakeCudnnTest {
 protected:
  void SetUp() override {
    FakeCudnnTest::SetUp();
    memory_ = device_->Allocate(1 << 16, "memory").value();
  }
  // x has strides that leave gaps: it is every second column of a matrix.
  absl::Status Run(const List& ids, std::vector<void*> pointers, void* workspace) {
    parts_.push_back(Final(Tensor(1, {1, 1, 2, 2}, {8, 8, 4, 2})));
    parts_.push_back(Final(Tensor(2, {1, 1, 1, 2}, {2, 2, 2, 1})));
    parts_.push_back(Final(Tensor(3, {1, 1, 2, 1}, {2, 2, 1, 1})));
    parts_.push_back(Final(Window({0, 0}, {1, 1})));
    parts_.push_back(Final(Forward(parts_[0], parts_[1], parts_[2], parts_[3])));
    ASSIGN_OR_RETURN(const std::vector<CudnnPlan> plans,
                     PlansFor(cudnn_, parts_[4], {.tensor_cores = false, .workspace_bytes = 4096}, 1, ""));
    return RunPlan(cudnn_, plans.front(), *device_->stream(), ids, pointers, workspace);
  }
  std::byte* At(size_t offset) { return memory_->data() + offset; }

  std::unique_ptr<DeviceMemory> memory_;
  std::vector<CudnnDescriptor> parts_;
};

TEST_F(FakeCudnnRunTest, ComputesByStrides) {
  const std::vector<float> x = {1, 9, 2, 9, 3, 9, 4, 9}, w = {10, 1};
  ASSERT_TRUE(device_->CopyToDevice(At(0), reinterpret_cast<const std::byte*>(x.data()), 32).ok());
  ASSERT_TRUE(device_->CopyToDevice(At(64), reinterpret_cast<const std::byte*>(w.data()), 8).ok());
  const absl::Status status = Run({3, 1, 2}, {At(128), At(0), At(64)}, At(4096));
  ASSERT_TRUE(status.ok()) << status;
  std::vector<float> y(2);
  ASSERT_TRUE(device_->CopyToHost(reinterpret_cast<std::byte*>(y.data()), At(128), 8).ok());
  ASSERT_TRUE(device_->Synchronize().ok());
  EXPECT_THAT(y, ElementsAre(12, 34));
  EXPECT_THAT(fake_.TakeMisuse(), IsEmpty());
}

// The convolution is not blamed, though it is the first call that sees the error.
TEST_F(FakeCudnnRunTest, WhatWasQueuedBeforeIsTheFirstCause) {
  driver_.driver.BreakIn(device_->stream()->handle(), CUDA_ERROR_ILLEGAL_ADDRESS);
  while (driver_.api.StreamQuery(device_->stream()->handle()) == CUDA_ERROR_NOT_READY) {
    std::this_thread::sleep_for(std::chrono::milliseconds(1));
  }
  const absl::Status status = Run({3, 1, 2}, {At(128), At(0), At(64)}, At(4096));
  EXPECT_THAT(std::string(status.message()),
              AllOf(HasSubstr("cudnnBackendExecute"), HasSubstr("CUDA_ERROR_ILLEGAL_ADDRESS"),
                    HasSubstr("or of work that was queued before")));
  EXPECT_EQ(device_->Synchronize(), status);
}

TEST_F(FakeCudnnRunTest, IdsPointersAndWorkspaces) {
  EXPECT_THAT(Refused(Run({1, 2, 4}, {At(0), At(64), At(128)}, At(4096))), HasSubstr("tensor 3 is not in the pack"));
  EXPECT_THAT(Refused(Run({1, 2, 3}, {At(0), At(64), At(132)}, At(4096))), HasSubstr("not aligned"));
  alignas(16) float host[4] = {};
  EXPECT_THAT(Refused(Run({1, 2, 3}, {At(0), At(64), host}, At(4096))), HasSubstr("is not in the GPU's memory"));
  EXPECT_THAT(Refused(Run({1, 2, 3}, {At(0), At(64), At(128)}, At((1 << 16) - 1024))),
              HasSubstr("the workspace is not"));
  EXPECT_THAT(Refused(Run({1, 2}, {At(0), At(64)}, At(4096))), HasSubstr("the pack does not have the plan's tensors"));
}

}  // namespace
}  // namespace lockstep::cuda
