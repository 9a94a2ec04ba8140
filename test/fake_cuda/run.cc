#include "test/fake_cuda/run.h"

#include <cmath>

#include "backends/cuda/cuda_backend.h"
#include "backends/run_in_process.h"
#include "core/check.h"
#include "core/printer.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "runtime/comm/in_process.h"
#include "runtime/cuda/device.h"
#include "runtime/cuda/library.h"
#include "test/fake_cuda/grid_images.h"
#include "test/fake_cuda/kernel_texts.h"
#include "test/fake_cuda/load.h"

namespace lockstep::cuda {
namespace {

// Returns the fake behind `symbol` of a fake library, which is opened if it is not open.
template <typename Fake>
Fake& Open(const char* path, const char* symbol) {
  LoadFakeDriver();  // the libraries look for the driver when they are first called
  const absl::StatusOr<Library> library = Library::Open("a fake library", path);
  LOCKSTEP_CHECK(library.ok()) << library.status();
  Fake* (*get)() = nullptr;
  const absl::Status found = library->Load(symbol, get);
  LOCKSTEP_CHECK(found.ok()) << "not a fake: " << found;
  return *get();
}

absl::StatusOr<std::vector<Tensor>> RunOn(const LoadedFakeDriver& fake, const Graph& graph,
                                          const std::vector<Tensor>& inputs, CompileOptions options, int times) {
  const std::unique_ptr<Backend> backend = CreateCudaBackend(FakeGridImages(), FakeKernelTexts());
  options.isa = "h200";
  ASSIGN_OR_RETURN(const auto device, CudaDevice::Create(fake.api, 0));
  ASSIGN_OR_RETURN(const auto world, CreateInProcess(1));
  ASSIGN_OR_RETURN(Executable executable, Compile(graph.Clone(), *backend, options));
  ASSIGN_OR_RETURN(const auto executor, Executor::Load(std::move(executable), world[0].get(), device.get()));
  absl::StatusOr<std::vector<Tensor>> results;
  for (int i = 0; i < times; ++i) results = RunOnce(*executor, graph, inputs);
  return results;
}

}  // namespace

absl::StatusOr<std::vector<Tensor>> RunOnFake(const Graph& graph, const std::vector<Tensor>& inputs,
                                              CompileOptions options, int times) {
  const LoadedFakeDriver fake = LoadFakeDriver();
  absl::StatusOr<std::vector<Tensor>> results = RunOn(fake, graph, inputs, std::move(options), times);
  EXPECT_THAT(fake.driver.misuse(), ::testing::IsEmpty());
  EXPECT_THAT(fake.driver.leaks(), ::testing::IsEmpty());
  return results;
}

FakeCudnn& TheFakeCudnn() {
  static FakeCudnn& fake = Open<FakeCudnn>("./test/fake_cuda/libcudnn.so.9", kGetFakeCudnn);
  return fake;
}

FakeCublasLt& TheFakeCublasLt() {
  static FakeCublasLt& fake = Open<FakeCublasLt>("./test/fake_cuda/libcublasLt.so.13", kGetFakeCublasLt);
  return fake;
}

Graph ParseForTest(const std::string& text) {
  absl::StatusOr<Graph> graph = ParseGraph(text);
  LOCKSTEP_CHECK(graph.ok()) << graph.status();
  return *std::move(graph);
}

std::vector<Tensor> InputsForTest(const Graph& graph) {
  std::vector<Tensor> inputs;
  for (const Input& input : graph.inputs()) {
    const TensorType& type = input.value.type();
    std::vector<double> values;
    for (int64_t i = 0; i < type.num_elements(); ++i) {
      const auto at = static_cast<double>(3 * i + static_cast<int64_t>(inputs.size()));
      values.push_back(IsFloat(type.dtype) ? std::sin(at) : static_cast<double>(i % 3));
    }
    inputs.push_back(Tensor::Of<double>(type.shape, values).Converted(type.dtype));
  }
  return inputs;
}

}  // namespace lockstep::cuda
