// Compares compiled loops with plain C++ loops and with the bandwidth of the memory, on one thread, and measures the
// time to compile them. bytes_per_second counts each byte that a loop has to read or write once.

#include <algorithm>
#include <cmath>
#include <cstring>
#include <vector>

#include "backends/codegen/loop_compiler.h"
#include "benchmark/benchmark.h"
#include "core/printer.h"

namespace lockstep {
namespace {

std::string Replaced(std::string text, int64_t n) {
  for (size_t at; (at = text.find('N')) != std::string::npos;) text.replace(at, 1, std::to_string(n));
  return text;
}

constexpr char kMomentum[] = R"(graph @f(%w: f32[N], %v: f32[N], %g: f32[N]) -> (w: f32[N], v: f32[N]) {
  %m = constant {value=dense<f32[]: 0.9>} : f32[]
  %mb = broadcast %m {shape=[N], dims=[]} : f32[N]
  %r = constant {value=dense<f32[]: 0.05>} : f32[]
  %rb = broadcast %r {shape=[N], dims=[]} : f32[N]
  %v0 = mul %mb, %v : f32[N]
  %v1 = add %v0, %g : f32[N]
  %s = mul %rb, %v1 : f32[N]
  %w1 = sub %w, %s : f32[N]
  return %w1, %v1
})";
constexpr char kTanh[] = "graph @f(%x: f32[N]) -> (y: f32[N]) {\n %y = tanh %x : f32[N]\n return %y\n}";
constexpr char kTriad[] = R"(graph @f(%x: f32[N], %y: f32[N]) -> (z: f32[N]) {
  %z = add %x, %y : f32[N]
  return %z
})";
constexpr char kColumnSum[] =
    "graph @f(%x: f32[128,4096]) -> (y: f32[4096]) {\n %y = reduce_sum %x {dims=[0]} : f32[4096]\n return %y\n}";
constexpr char kRowSum[] =
    "graph @f(%x: f32[128,1000]) -> (y: f32[128]) {\n %y = reduce_sum %x {dims=[1]} : f32[128]\n return %y\n}";
constexpr char kRowMax[] =
    "graph @f(%x: f32[128,1000]) -> (y: f32[128]) {\n %y = reduce_max %x {dims=[1]} : f32[128]\n return %y\n}";
constexpr char kChannelSum[] =
    "graph @f(%x: f32[64,20,24,24]) -> (y: f32[20]) {\n %y = reduce_sum %x {dims=[0,2,3]} : f32[20]\n return %y\n}";
constexpr char kBias[] = R"(graph @f(%x: f32[64,20,24,24], %b: f32[20]) -> (y: f32[64,20,24,24]) {
  %bb = broadcast %b {shape=[64,20,24,24], dims=[1]} : f32[64,20,24,24]
  %z = add %x, %bb : f32[64,20,24,24]
  %y = tanh %z : f32[64,20,24,24]
  return %y
})";
constexpr char kReluGradient[] =
    R"(graph @f(%y: f32[128,4096], %g: f32[128,4096]) -> (dz: f32[128,4096], db: f32[4096]) {
  %z = constant {value=dense<f32[]: 0.0>} : f32[]
  %zb = broadcast %z {shape=[128,4096], dims=[]} : f32[128,4096]
  %c = compare %y, %zb {direction=gt} : bool[128,4096]
  %dz = select %c, %g, %zb : f32[128,4096]
  %db = reduce_sum %dz {dims=[0]} : f32[4096]
  return %dz, %db
})";
constexpr char kSoftmax[] = R"(graph @f(%x: f32[128,1000]) -> (y: f32[128,1000]) {
  %m = reduce_max %x {dims=[1]} : f32[128]
  %mb = broadcast %m {shape=[128,1000], dims=[0]} : f32[128,1000]
  %d = sub %x, %mb : f32[128,1000]
  %e = exp %d : f32[128,1000]
  %s = reduce_sum %e {dims=[1]} : f32[128]
  %sb = broadcast %s {shape=[128,1000], dims=[0]} : f32[128,1000]
  %y = div %e, %sb : f32[128,1000]
  return %y
})";

struct Memory {
  explicit Memory(const Graph& body) {
    for (const Input& input : body.inputs()) tensors.push_back(Tensor::Full(input.value.type(), 0.25));
    for (const Result& result : body.results()) tensors.emplace_back(result.value.type());
    for (Tensor& tensor : tensors) {
      buffers.push_back(tensor.mutable_bytes());
      bytes += static_cast<int64_t>(tensor.num_bytes());
    }
  }
  std::vector<Tensor> tensors;
  std::vector<void*> buffers;
  int64_t bytes = 0;
};

void Compiled(benchmark::State& state, const char* text, bool in_place) {
  const Graph body = ParseGraph(Replaced(text, state.range(0))).value();
  auto compiler = LoopCompiler::Create().value();
  const CompiledLoop loop = compiler->Compile(body).value();
  Memory memory(body);
  if (in_place) {
    for (size_t r = 0; r < body.results().size(); ++r)
      memory.buffers[body.inputs().size() + r] = memory.buffers[static_cast<size_t>(loop.info.in_place[r][0])];
  }
  std::vector<std::byte> scratch(static_cast<size_t>(loop.info.scratch_bytes) + 64);
  void* const aligned = scratch.data() + (64 - reinterpret_cast<uintptr_t>(scratch.data()) % 64) % 64;
  for (auto _ : state) {
    if (loop.RunAll(memory.buffers.data(), aligned) != kLoopOk) state.SkipWithError("failed");
    benchmark::ClobberMemory();
  }
  state.SetBytesProcessed(state.iterations() * memory.bytes);
}

using PlainLoop = void (*)(void* const* buffers, int64_t n);

void PlainMomentum(void* const* buffers, int64_t n) {
  auto *w = static_cast<float*>(buffers[0]), *v = static_cast<float*>(buffers[1]), *g = static_cast<float*>(buffers[2]);
  for (int64_t i = 0; i < n; ++i) v[i] = 0.9F * v[i] + g[i], w[i] -= 0.05F * v[i];
}
void PlainTanh(void* const* buffers, int64_t n) {
  auto *x = static_cast<float*>(buffers[0]), *y = static_cast<float*>(buffers[1]);
  for (int64_t i = 0; i < n; ++i) y[i] = std::tanh(x[i]);
}
void PlainTriad(void* const* buffers, int64_t n) {
  auto *x = static_cast<float*>(buffers[0]), *y = static_cast<float*>(buffers[1]), *z = static_cast<float*>(buffers[2]);
  for (int64_t i = 0; i < n; ++i) z[i] = x[i] + y[i];
}
void PlainColumnSum(void* const* buffers, int64_t) {
  auto *x = static_cast<float*>(buffers[0]), *y = static_cast<float*>(buffers[1]);
  std::fill(y, y + 4096, 0.0F);
  for (int64_t row = 0; row < 128; ++row) {
    for (int64_t i = 0; i < 4096; ++i) y[i] += x[row * 4096 + i];
  }
}
void PlainRowSum(void* const* buffers, int64_t) {
  auto *x = static_cast<float*>(buffers[0]), *y = static_cast<float*>(buffers[1]);
  for (int64_t row = 0; row < 128; ++row) {
    float sum = 0;
    for (int64_t i = 0; i < 1000; ++i) sum += x[row * 1000 + i];
    y[row] = sum;
  }
}
void PlainRowMax(void* const* buffers, int64_t) {
  auto *x = static_cast<float*>(buffers[0]), *y = static_cast<float*>(buffers[1]);
  for (int64_t row = 0; row < 128; ++row) y[row] = *std::max_element(x + row * 1000, x + row * 1000 + 1000);
}

void Plain(benchmark::State& state, const char* text, PlainLoop loop, bool in_place) {
  const Graph body = ParseGraph(Replaced(text, state.range(0))).value();
  Memory memory(body);
  (void)in_place;
  for (auto _ : state) {
    loop(memory.buffers.data(), state.range(0));
    benchmark::ClobberMemory();
  }
  state.SetBytesProcessed(state.iterations() * memory.bytes);
}

// The bandwidth of the memory: memcpy, whose bytes count as read and as written.
void Copy(benchmark::State& state) {
  std::vector<float> from(static_cast<size_t>(state.range(0)), 1), to(from.size());
  for (auto _ : state) {
    std::memcpy(to.data(), from.data(), from.size() * sizeof(float));
    benchmark::ClobberMemory();
  }
  state.SetBytesProcessed(state.iterations() * state.range(0) * 8);
}

void Compilation(benchmark::State& state, const char* text) {
  const Graph body = ParseGraph(Replaced(text, 1000)).value();
  for (auto _ : state) {
    state.PauseTiming();
    auto compiler = LoopCompiler::Create().value();
    state.ResumeTiming();
    benchmark::DoNotOptimize(compiler->Compile(body).value().run);
  }
}

constexpr int64_t k16M = 16 << 20, k1M = 1 << 20, k64K = 64 << 10;

BENCHMARK(Copy)->Arg(k16M)->Arg(k64K);
BENCHMARK_CAPTURE(Compiled, triad, kTriad, false)->Arg(k16M)->Arg(k64K);
BENCHMARK_CAPTURE(Plain, triad, kTriad, PlainTriad, false)->Arg(k16M)->Arg(k64K);
BENCHMARK_CAPTURE(Compiled, momentum, kMomentum, true)->Arg(k16M);
BENCHMARK_CAPTURE(Plain, momentum, kMomentum, PlainMomentum, true)->Arg(k16M);
BENCHMARK_CAPTURE(Compiled, tanh, kTanh, false)->Arg(k1M)->Arg(k64K);
BENCHMARK_CAPTURE(Plain, tanh, kTanh, PlainTanh, false)->Arg(k1M);
BENCHMARK_CAPTURE(Compiled, column_sum_128x4096, kColumnSum, false)->Arg(0);
BENCHMARK_CAPTURE(Plain, column_sum_128x4096, kColumnSum, PlainColumnSum, false)->Arg(0);
BENCHMARK_CAPTURE(Compiled, row_sum_128x1000, kRowSum, false)->Arg(0);
BENCHMARK_CAPTURE(Plain, row_sum_128x1000, kRowSum, PlainRowSum, false)->Arg(0);
BENCHMARK_CAPTURE(Compiled, row_max_128x1000, kRowMax, false)->Arg(0);
BENCHMARK_CAPTURE(Plain, row_max_128x1000, kRowMax, PlainRowMax, false)->Arg(0);
BENCHMARK_CAPTURE(Compiled, channel_sum_64x20x24x24, kChannelSum, false)->Arg(0);
BENCHMARK_CAPTURE(Compiled, bias_tanh_64x20x24x24, kBias, false)->Arg(0);
BENCHMARK_CAPTURE(Compiled, relu_gradient_and_bias_128x4096, kReluGradient, false)->Arg(0);
BENCHMARK_CAPTURE(Compiled, softmax_128x1000, kSoftmax, false)->Arg(0);
BENCHMARK_CAPTURE(Compilation, tanh, kTanh)->Unit(benchmark::kMillisecond)->Iterations(20);
BENCHMARK_CAPTURE(Compilation, momentum, kMomentum)->Unit(benchmark::kMillisecond)->Iterations(20);
BENCHMARK_CAPTURE(Compilation, column_sum, kColumnSum)->Unit(benchmark::kMillisecond)->Iterations(20);
BENCHMARK_CAPTURE(Compilation, relu_gradient, kReluGradient)->Unit(benchmark::kMillisecond)->Iterations(20);
BENCHMARK_CAPTURE(Compilation, softmax, kSoftmax)->Unit(benchmark::kMillisecond)->Iterations(20);

}  // namespace
}  // namespace lockstep

BENCHMARK_MAIN();
