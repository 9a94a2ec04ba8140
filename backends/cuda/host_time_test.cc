// The cost of a run on the host once its steps are a CUDA graph: counts and checks the driver calls and memory
// allocations, and prints the time. The driver in this test does nothing, so none of the time is the driver's.

#include <algorithm>
#include <atomic>
#include <chrono>
#include <cstdio>
#include <cstdlib>
#include <map>
#include <memory>
#include <new>
#include <string>
#include <utility>
#include <vector>

#include "backends/cuda/captured_steps.h"
#include "core/status.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "runtime/comm/in_process.h"
#include "runtime/cuda/device.h"
#include "runtime/execution/executor.h"

namespace {
std::atomic<int64_t> allocations{0};
}  // namespace

void* operator new(size_t bytes) {
  ++allocations;
  void* memory = std::malloc(std::max<size_t>(bytes, 1));
  if (memory == nullptr) std::abort();
  return memory;
}
void operator delete(void* memory) noexcept { std::free(memory); }
void operator delete(void* memory, size_t) noexcept { std::free(memory); }

namespace lockstep::cuda {
namespace {

// --- A driver that does nothing -----------------------------------------------------------------------------------

constexpr int kFunctions = 64;
int64_t calls[kFunctions] = {};
const char* names[kFunctions] = {};

template <int function, typename F>
struct Nothing;
template <int function, typename... Args>
struct Nothing<function, CUresult (*)(Args...)> {
  static CUresult Call(Args...) {
    ++calls[function];
    return CUDA_SUCCESS;
  }
};

// Makes a handle that is never dereferenced.
template <typename Handle>
void Make(Handle* handle) {
  *handle = reinterpret_cast<Handle>(uintptr_t{64});
}

DriverApi DriverThatDoesNothing() {
  DriverApi api;
  constexpr int kFirst = __COUNTER__ + 1;
#define LOCKSTEP_NOTHING(result, name, symbol, parameters)  \
  {                                                         \
    constexpr int kNumber = __COUNTER__ - kFirst;           \
    static_assert(kNumber < kFunctions);                    \
    names[kNumber] = #name;                                 \
    api.name = &Nothing<kNumber, decltype(api.name)>::Call; \
  }
  LOCKSTEP_CU_FUNCTIONS(LOCKSTEP_NOTHING)
#undef LOCKSTEP_NOTHING
  api.DeviceGetCount = [](int* count) { return *count = 1, CUDA_SUCCESS; };
  api.DevicePrimaryCtxRetain = [](CUcontext* context, CUdevice) { return Make(context), CUDA_SUCCESS; };
  api.StreamCreateWithPriority = [](CUstream* stream, unsigned, int) { return Make(stream), CUDA_SUCCESS; };
  api.EventCreate = [](CUevent* event, unsigned) { return Make(event), CUDA_SUCCESS; };
  api.MemAlloc = [](CUdeviceptr* memory, size_t) { return *memory = 4096, CUDA_SUCCESS; };
  api.MemHostAlloc = [](void** memory, size_t bytes, unsigned) {
    *memory = std::calloc(bytes, 1);
    return CUDA_SUCCESS;
  };
  api.MemFreeHost = [](void* memory) { return std::free(memory), CUDA_SUCCESS; };
  api.StreamEndCapture = [](CUstream, CUgraph* graph) { return Make(graph), CUDA_SUCCESS; };
  api.GraphInstantiateWithFlags = [](CUgraphExec* graph, CUgraph, unsigned long long) {
    return Make(graph), CUDA_SUCCESS;
  };
  return api;
}

// --- A program of two inputs, a state and a result ----------------------------------------------------------------

class LaunchStep final : public Step {
 public:
  LaunchStep(StepInfo info, const DriverApi& api) : Step(std::move(info)), api_(api) {}
  absl::Status Run(StepContext& context) override {
    const CUstream stream = static_cast<CudaStream*>(context.stream())->handle();
    return api_.Check(api_.LaunchKernel(nullptr, 1, 1, 1, 32, 1, 1, 0, stream, nullptr, nullptr), "cuLaunchKernel");
  }

 private:
  const DriverApi& api_;
};

constexpr int kSteps = 40;
const TensorType kX{DType::kF32, {32, 64}}, kY{DType::kI64, {32}}, kW{DType::kF32, {64, 10}}, kLoss{DType::kF32, {}};

Executable ManySteps(const DriverApi& api) {
  Executable executable;
  executable.name = "step";
  executable.backend = "cuda";
  executable.mesh = Mesh({{"data", 1}});
  const auto add = [&](BufferKind kind, const char* name, const TensorType& type) {
    executable.buffers.push_back({kind, name, type.num_bytes()});
    ValueInfo info{name, type, type, {}, static_cast<int32_t>(executable.buffers.size() - 1)};
    (kind == BufferKind::kInput   ? executable.inputs
     : kind == BufferKind::kState ? executable.states
                                  : executable.results)
        .push_back(std::move(info));
  };
  add(BufferKind::kInput, "image", kX);
  add(BufferKind::kInput, "label", kY);
  add(BufferKind::kState, "w", kW);
  add(BufferKind::kResult, "loss", kLoss);
  for (int i = 0; i < kSteps; ++i) {
    StepInfo info;
    info.name = "launch";
    info.writes = {{"w", "", {2, 0, kW.num_bytes()}}};
    executable.steps.push_back(std::make_unique<LaunchStep>(std::move(info), api));
  }
  executable.combined_run = std::make_unique<CapturedSteps>();
  return executable;
}

double Microseconds() {
  return std::chrono::duration<double, std::micro>(std::chrono::steady_clock::now().time_since_epoch()).count();
}

double Median(std::vector<double> values) {
  std::sort(values.begin(), values.end());
  return values[values.size() / 2];
}

TEST(HostTime, OfARunThatIsAGraph) {
  const DriverApi api = DriverThatDoesNothing();
  auto device = CudaDevice::Create(api, 0);
  ASSERT_TRUE(device.ok()) << device.status();
  (*device)->stream()->RegisterErrors({"label out of range"});  // so that there is an error word to check
  const auto world = CreateSingle();
  ASSERT_TRUE(world.ok()) << world.status();
  auto loaded = Executor::Load(ManySteps(api), world->get(), device->get());
  ASSERT_TRUE(loaded.ok()) << loaded.status();
  Executor& executor = **loaded;
  const Tensor x(kX), y(kY);
  float loss = 0;
  const std::vector<NamedInput> inputs = {{"image", {kX, x.bytes()}}, {"label", {kY, y.bytes()}}};
  const std::vector<NamedResult> results = {{"loss", {kLoss, &loss}}};
  for (int run = 0; run < 40; ++run) ASSERT_TRUE(executor.Run(inputs, results).ok());
  constexpr int kRuns = 5000;
  std::vector<double> starts, waits;
  starts.reserve(kRuns), waits.reserve(kRuns);
  std::fill(std::begin(calls), std::end(calls), 0);
  const int64_t before = allocations;
  for (int run = 0; run < kRuns; ++run) {
    const double begin = Microseconds();
    const auto call = executor.Start(inputs, results);
    const double between = Microseconds();
    const absl::Status status = executor.Wait(*call);
    const double end = Microseconds();
    if (!status.ok()) FAIL() << status;
    starts.push_back(between - begin), waits.push_back(end - between);
  }
  const int64_t allocated = allocations - before;
  std::map<std::string, double> per_run;
  double of_driver = 0;
  for (int i = 0; i < kFunctions; ++i) {
    if (calls[i] > 0) per_run[names[i]] = static_cast<double>(calls[i]) / kRuns;
    of_driver += static_cast<double>(calls[i]) / kRuns;
  }
  std::printf(
      "the host's part of a run of two inputs and one result: Start %.2f us, Wait %.2f us, beside the driver's\n",
      Median(starts), Median(waits));
  for (const auto& [name, count] : per_run) std::printf("  %-16s %5.2f calls\n", name.c_str(), count);
  EXPECT_EQ(per_run["GraphLaunch"], 1);
  EXPECT_EQ(per_run.count("LaunchKernel"), 0u) << "steps one by one";
  // Each call takes a driver about a microsecond. WaitForQueueSpace waits once in 128 copies.
  EXPECT_LE(of_driver, 32.1);
  EXPECT_EQ(allocated, 0) << "pieces of memory in " << kRuns << " runs";
}

}  // namespace
}  // namespace lockstep::cuda
