// Max pooling and its gradient in one program, where the forward op stores the maxima for the gradient, compared with
// the interpreter: with NaN, with windows of only -inf, and with ordinary values again afterwards.

#include <limits>
#include <random>
#include <string>

#include "backends/run_in_process.h"
#include "core/interpreter.h"
#include "core/printer.h"
#include "core/random_tensor.h"
#include "gtest/gtest.h"
#include "test/op_cases/special_values.h"

namespace lockstep {
namespace {

constexpr float kNan = std::numeric_limits<float>::quiet_NaN();
constexpr float kInfinity = std::numeric_limits<float>::infinity();

// x is row-major, because it is an input.
constexpr char kRowMajor[] = R"(
graph @f(%x: f32[3,5,8,9], %dy: f32[3,5,4,5]) -> (y: f32[3,5,4,5], dx: f32[3,5,8,9]) {
  %y = max_pool %x {dilation=[1,1], padding_high=[0,1], padding_low=[0,0], stride=[2,2], window=[2,2]} : f32[3,5,4,5]
  %dx = max_pool_grad %x, %dy {dilation=[1,1], padding_high=[0,1], padding_low=[0,0], stride=[2,2], window=[2,2]} : f32[3,5,8,9]
  return %y, %dx
})";

// x is channels-last, because it comes from a convolution, here with the identity.
constexpr char kChannelsLast[] = R"(
graph @f(%in: f32[3,5,8,9], %dy: f32[3,5,4,5], %w: f32[5,1,1,1]) -> (y: f32[3,5,4,5], dx: f32[3,5,8,9]) {
  %x = convolution %in, %w {dilation=[1,1], groups=5, padding_high=[0,0], padding_low=[0,0], stride=[1,1]} : f32[3,5,8,9]
  %y = max_pool %x {dilation=[1,1], padding_high=[0,1], padding_low=[0,0], stride=[2,2], window=[2,2]} : f32[3,5,4,5]
  %dx = max_pool_grad %x, %dy {dilation=[1,1], padding_high=[0,1], padding_low=[0,0], stride=[2,2], window=[2,2]} : f32[3,5,8,9]
  return %y, %dx
})";

// The window has more taps than a byte can count.
constexpr char kLargeWindow[] = R"(
graph @f(%x: f32[1,2,20,18], %dy: f32[1,2,4,2]) -> (y: f32[1,2,4,2], dx: f32[1,2,20,18]) {
  %y = max_pool %x {dilation=[1,1], padding_high=[0,0], padding_low=[0,0], stride=[1,1], window=[17,17]} : f32[1,2,4,2]
  %dx = max_pool_grad %x, %dy {dilation=[1,1], padding_high=[0,0], padding_low=[0,0], stride=[1,1], window=[17,17]} : f32[1,2,20,18]
  return %y, %dx
})";

std::vector<Tensor> Inputs(const Graph& graph, uint64_t seed) {
  std::mt19937_64 random(seed);
  std::vector<Tensor> inputs;
  for (const Input& input : graph.inputs()) inputs.push_back(RandomTensor(input.value.type(), random, -2, 2));
  if (inputs.size() == 3) inputs[2] = Tensor::Full(inputs[2].type(), 1.0);
  return inputs;
}

void ExpectAsInterpreted(std::string_view text, bool channels_last) {
  const absl::StatusOr<Graph> graph = ParseGraph(text);
  ASSERT_TRUE(graph.ok()) << graph.status();
  const auto backend = CreateBackend("cpu");
  ASSERT_TRUE(backend.ok()) << backend.status();
  std::vector<std::vector<std::vector<Tensor>>> runs;
  const auto add = [&](const auto& change) {
    runs.push_back({Inputs(*graph, 1 + runs.size())});
    const auto x = runs.back()[0][0].mutable_data<float>();
    change(x);
  };
  add([](std::span<float>) {});
  add([](std::span<float> x) { x[x.size() / 2] = kNan; });
  add([](std::span<float> x) { x.back() = kNan, x.front() = -kInfinity; });
  add([](std::span<float> x) { std::fill(x.begin(), x.end(), -kInfinity); });
  add([](std::span<float> x) { std::fill(x.begin(), x.end(), kNan); });
  add([](std::span<float>) {});  // earlier runs must have no effect
  for (int threads : {1, 2}) {
    CompileOptions options;
    options.threads = threads;
    const absl::StatusOr<Executable> executable = Compile(graph->Clone(), **backend, options);
    ASSERT_TRUE(executable.ok()) << executable.status();
    EXPECT_NE(executable->ToString().find("onednn.max_pool_grad"), std::string::npos) << executable->ToString();
    EXPECT_EQ(executable->ToString().find("%x:s") != std::string::npos, channels_last) << executable->ToString();
    const auto actual = RunSeveralInProcess(*graph, **backend, runs, options);
    ASSERT_TRUE(actual.ok()) << actual.status();
    const OpCase row = Case("max_pool_grad", {F32({})});
    for (size_t run = 0; run < runs.size(); ++run) {
      const auto expected = InterpretOneRank(*graph, runs[run][0]);
      ASSERT_TRUE(expected.ok()) << expected.status();
      for (size_t i = 0; i < expected->size(); ++i) {
        EXPECT_EQ(SpecialDifference(row, (*actual)[run][0][i], (*expected)[i], 1e-6), "")
            << "result " << i << " of run " << run << " on " << threads << " threads";
      }
    }
  }
}

TEST(MaxPool, RowMajor) { ExpectAsInterpreted(kRowMajor, false); }
TEST(MaxPool, ChannelsLast) { ExpectAsInterpreted(kChannelsLast, true); }
TEST(MaxPool, LargeWindow) { ExpectAsInterpreted(kLargeWindow, false); }

// Where oneDNN has no fast implementation for the dtype, the loop reads and writes the layout of convolutions.
TEST(MaxPool, SixteenBitFloatsStayChannelsLast) {
  for (const std::string dtype : {"f16", "bf16"}) {
    std::string text = kChannelsLast;
    for (size_t at = 0; (at = text.find("f32", at)) != std::string::npos;) text.replace(at, 3, dtype);
    const absl::StatusOr<Graph> graph = ParseGraph(text);
    ASSERT_TRUE(graph.ok()) << graph.status();
    const auto backend = CreateBackend("cpu");
    ASSERT_TRUE(backend.ok()) << backend.status();
    const absl::StatusOr<Executable> executable = Compile(graph->Clone(), **backend, {});
    ASSERT_TRUE(executable.ok()) << executable.status();
    EXPECT_EQ(executable->ToString().find("reference."), std::string::npos) << executable->ToString();
    const std::vector<Tensor> inputs = Inputs(*graph, 1);
    const auto actual = RunSeveralInProcess(*graph, **backend, {{inputs}}, {});
    ASSERT_TRUE(actual.ok()) << actual.status();
    const auto expected = InterpretOneRank(*graph, inputs);
    ASSERT_TRUE(expected.ok()) << expected.status();
    for (size_t i = 0; i < expected->size(); ++i)
      EXPECT_EQ(SpecialDifference(Case("max_pool_grad", {F32({})}), (*actual)[0][0][i], (*expected)[i], 0), "")
          << dtype;
  }
}

}  // namespace
}  // namespace lockstep
