#include "backends/device_test_support.h"

#include "backends/executor_test_support.h"
#include "backends/simulated_backend.h"
#include "core/check.h"
#include "core/printer.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "runtime/cuda/device.h"
#include "runtime/simulated_device.h"

namespace lockstep {

Graph SmallStep(int ranks) {
  absl::StatusOr<Graph> graph = ParseGraph(StepFor(ranks));
  LOCKSTEP_CHECK(graph.ok()) << graph.status();
  return *std::move(graph);
}

std::string Name(Machine machine) {
  const char* const names[] = {"Host", "Simulated", "Cuda", "LazyCuda"};
  return names[static_cast<int>(machine)];
}

Machines::Machines(Machine machine, int ranks) : machine_(machine) {
  if (machine != Machine::kCuda && machine != Machine::kLazyCuda) return;
  const auto pace = machine == Machine::kCuda ? cuda::FakeDriver::Pace::kRandom : cuda::FakeDriver::Pace::kLazy;
  fake_ = std::make_unique<cuda::LoadedFakeDriver>(cuda::LoadFakeDriver({.gpus = ranks, .pace = pace}));
}

Machines::~Machines() {
  if (fake_ == nullptr) return;
  EXPECT_THAT(fake_->driver.misuse(), testing::IsEmpty());
  EXPECT_THAT(fake_->driver.leaks(), testing::IsEmpty());
}

absl::StatusOr<std::unique_ptr<Backend>> Machines::MakeBackend(int rank) const {
  if (is_host()) return CreateBackend("cpu");
  if (fake_ == nullptr) return CreateSimulatedBackend();
  return CreateSimulatedBackend(
      {.make_device = [this, rank] { return cuda::CudaDevice::Create(fake_->api, rank); },
       .device_of = [](Stream& stream) -> Device& { return static_cast<cuda::CudaStream&>(stream).device(); },
       .find = [this](const Device& device, const void* address, size_t bytes) -> absl::StatusOr<std::byte*> {
         std::byte* found = fake_->driver.Find(reinterpret_cast<cuda::CUdeviceptr>(address), bytes);
         if (found == nullptr) return InvalidArgument() << address << " is not memory of the device " << device.name();
         return found;
       }});
}

std::byte* Machines::FindOnGpu(const std::byte* address, size_t bytes) const {
  return fake_->driver.Find(reinterpret_cast<cuda::CUdeviceptr>(address), bytes);
}

size_t Machines::Queued(Device& device) const {
  if (is_host()) return 0;
  if (fake_ == nullptr) return static_cast<SimulatedStream*>(device.stream())->size();
  auto& stream = static_cast<cuda::CudaStream&>(*device.stream());
  return fake_->api.StreamQuery(stream.handle()) == cuda::CUDA_SUCCESS ? 0 : 1;
}

absl::StatusOr<std::unique_ptr<Rank>> Rank::Load(const Graph& graph, const Mesh& mesh, const Machines& machines,
                                                 Communicator& world, const ExecutorOptions& executor_options) {
  auto rank = std::make_unique<Rank>(machines);
  ASSIGN_OR_RETURN(const auto backend, machines.MakeBackend(world.rank()));
  ASSIGN_OR_RETURN(rank->opened, backend->OpenDevice(world));
  CompileOptions options;
  options.mesh = mesh;
  options.bucket_bytes = 256;
  ASSIGN_OR_RETURN(Executable executable, Compile(graph.Clone(), *backend, options));
  ASSIGN_OR_RETURN(rank->executor, Executor::Load(std::move(executable), rank->opened.communicator,
                                                  rank->opened.device.get(), executor_options));
  return rank;
}

// Returns values that depend on the type and `salt`; integers are class labels.
Tensor Values(const TensorType& type, int salt) {
  Tensor tensor(type);
  for (int64_t i = 0; i < tensor.num_elements(); ++i) {
    if (type.dtype == DType::kI64) tensor.mutable_data<int64_t>()[i] = (i + salt) % 5;
    else tensor.mutable_data<float>()[i] = static_cast<float>((i * 7 + salt * 3) % 11 - 5) / 8;
  }
  return tensor;
}

}  // namespace lockstep
