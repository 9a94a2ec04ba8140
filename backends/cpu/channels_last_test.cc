// Channels-last values: the steps of a convolutional network, and the results of loops, pools, copies and collectives
// with such operands, compared with the interpreter.

#include <algorithm>
#include <cstring>
#include <set>
#include <string>
#include <utility>
#include <vector>

#include "backends/backend.h"
#include "backends/compile.h"
#include "backends/conformance/compare_with_interpreter.h"
#include "backends/run_in_process.h"
#include "core/printer.h"
#include "gtest/gtest.h"
#include "passes/training/train_step.h"

namespace lockstep {
namespace {

Graph Parse(std::string_view text) {
  auto graph = ParseGraph(text);
  LOCKSTEP_CHECK(graph.ok()) << graph.status() << " in " << text;
  return std::move(*graph);
}

Executable CompileForCpu(const Graph& graph, const CompileOptions& options = {}) {
  const auto backend = CreateBackend("cpu");
  auto executable = Compile(graph.Clone(), **backend, options);
  LOCKSTEP_CHECK(executable.ok()) << executable.status();
  return std::move(*executable);
}

bool IsChannelsLast(const StepOperand& operand) { return operand.layout.starts_with("s"); }

// Counts the compiled loops with a channels-last operand or result.
int64_t LoopsChannelsLast(const Executable& executable) {
  return std::count_if(executable.steps.begin(), executable.steps.end(), [](const auto& step) {
    const StepInfo& info = step->info();
    return info.name.starts_with("llvm.") && (std::any_of(info.reads.begin(), info.reads.end(), IsChannelsLast) ||
                                              std::any_of(info.writes.begin(), info.writes.end(), IsChannelsLast));
  });
}

// --- Steps -----------------------------------------------------------------------------------------------------------

// LeNet's two stages: convolution, bias, tanh, pool.
constexpr char kTwoStages[] = R"(
graph @model(%x: f32[8,1,20,20] split(0), state %k1: f32[20,1,5,5], state %c1: f32[20], state %k2: f32[50,20,5,5], state %c2: f32[50], state %w: f32[10,200]) -> (logits: f32[8,10] split(0)) {
  %z1 = convolution %x, %k1 {dilation=[1,1], padding_high=[0,0], padding_low=[0,0], stride=[1,1]} : f32[8,20,16,16]
  %b1 = broadcast %c1 {dims=[1], shape=[8,20,16,16]} : f32[8,20,16,16]
  %h1 = add %z1, %b1 : f32[8,20,16,16]
  %a1 = tanh %h1 : f32[8,20,16,16]
  %p1 = max_pool %a1 {dilation=[1,1], padding_high=[0,0], padding_low=[0,0], stride=[2,2], window=[2,2]} : f32[8,20,8,8]
  %z2 = convolution %p1, %k2 {dilation=[1,1], padding_high=[0,0], padding_low=[0,0], stride=[1,1]} : f32[8,50,4,4]
  %b2 = broadcast %c2 {dims=[1], shape=[8,50,4,4]} : f32[8,50,4,4]
  %h2 = add %z2, %b2 : f32[8,50,4,4]
  %a2 = tanh %h2 : f32[8,50,4,4]
  %p2 = max_pool %a2 {dilation=[1,1], padding_high=[0,0], padding_low=[0,0], stride=[2,2], window=[2,2]} : f32[8,50,2,2]
  %f = reshape %p2 {shape=[8,200]} : f32[8,200]
  %logits = matmul %f, %w {transpose_b=true} : f32[8,10]
  return %logits
}
)";

Graph TwoStageStep() {
  Graph graph = Parse(kTwoStages);
  const absl::Status status = passes::MakeTrainStep(graph, {});
  LOCKSTEP_CHECK(status.ok()) << status;
  return graph;
}

TEST(ChannelsLastSteps, NoReorderBetweenConvolutionLoopAndPool) {
  const Executable executable = CompileForCpu(TwoStageStep());
  SCOPED_TRACE(executable.ToString());
  EXPECT_EQ(LoopsChannelsLast(executable), 4);  // bias and tanh, and their gradients, of two stages
  int convolutions = 0, reordered_values = 0;
  for (const auto& step : executable.steps) {
    const StepInfo& info = step->info();
    if (info.name == "onednn.reorder") {
      // Filters, and the border to row-major values: the last pool's result before the reshape, and its gradient after
      // it.
      const std::string& name = info.reads[0].name;
      const bool is_filter = name == "k1" || name == "k2" || name == "grad/k1" || name == "grad/k2";
      if (is_filter) continue;
      ++reordered_values;
      const std::string next = info.writes[0].layout.empty() ? "matmul" : "max_pool_grad";
      const auto reader = std::find_if(executable.steps.begin(), executable.steps.end(), [&](const auto& other) {
        const auto& reads = other->info().reads;
        return std::any_of(reads.begin(), reads.end(),
                           [&](const StepOperand& read) { return read.slice == info.writes[0].slice; }) &&
               other->info().name == "onednn." + next;
      });
      EXPECT_NE(reader, executable.steps.end()) << info.ToString();
      continue;
    }
    if (!info.name.starts_with("onednn.convolution") && !info.name.starts_with("onednn.max_pool")) continue;
    convolutions += info.name.starts_with("onednn.convolution");
    for (const auto* operands : {&info.reads, &info.writes}) {
      for (const StepOperand& operand : *operands) {
        const bool is_filter = operand.name.find('k') != std::string::npos;
        const bool is_opaque = operand.layout == "opaque";            // the positions of the maxima
        if (is_filter || is_opaque || operand.name == "x") continue;  // x has one channel: both orders are the same
        EXPECT_TRUE(IsChannelsLast(operand)) << info.ToString();
      }
    }
  }
  EXPECT_EQ(convolutions, 5);  // x needs no gradient
  EXPECT_EQ(reordered_values, 2);
}

// dy comes row-major from the classifier; the readers of dx use channels-last.
TEST(ChannelsLastSteps, GradientOfAveragePoolReordersTheSmallSide) {
  const Executable executable = CompileForCpu(Parse(R"(
graph @f(%x: f32[4,3,6,6], %k: f32[7,3,1,1], %d: f32[4,7,3,3]) -> (dk: f32[7,3,1,1]) {
  %z = convolution %x, %k {dilation=[1,1], padding_high=[0,0], padding_low=[0,0], stride=[1,1]} : f32[4,7,6,6]
  %t = tanh %z : f32[4,7,6,6]
  %e = avg_pool_grad %d {include_padding=false, input_shape=[4,7,6,6], padding_high=[0,0], padding_low=[0,0], stride=[2,2], window=[2,2]} : f32[4,7,6,6]
  %g = mul %e, %t : f32[4,7,6,6]
  %dk = convolution_grad_filter %x, %g {dilation=[1,1], filter_shape=[7,3,1,1], padding_high=[0,0], padding_low=[0,0], stride=[1,1]} : f32[7,3,1,1]
  return %dk
}
)"));
  std::set<std::string> reordered;
  for (const auto& step : executable.steps) {
    if (step->info().name == "onednn.reorder") reordered.insert(step->info().reads[0].name);
  }
  EXPECT_EQ(reordered, (std::set<std::string>{"d", "k", "x", "dk"})) << executable.ToString();
}

// In the layout in which oneDNN computes them, with padding if channels do not fill its blocks.
TEST(ChannelsLastSteps, GradientsOfFiltersAreReorderedOnceAdded) {
  for (const auto& [in, out] : {std::pair("16", "32"), std::pair("3", "20")}) {
    const std::string x = "f32[2," + std::string(in) + ",6,6]", dy = "f32[2," + std::string(out) + ",4,4]",
                      filter = std::string(out) + "," + in + ",3,3", type = " : f32[" + filter + "]\n";
    std::string inputs, nodes;
    for (int i = 0; i < 4; ++i) {
      const std::string n = std::to_string(i);
      inputs += (i == 0 ? "%x" : ", %x") + n + ": " + x + ", %dy" + n + ": " + dy;
      nodes += "  %k" + n + " = convolution_grad_filter %x" + n + ", %dy" + n + " {dilation=[1,1], filter_shape=[" +
               filter + "], padding_high=[0,0], padding_low=[0,0], stride=[1,1]}" + type;
    }
    const Graph graph =
        Parse("graph @f(" + inputs + ") -> (k: f32[" + filter + "]) {\n" + nodes + "  %a = add %k0, %k1" + type +
              "  %b = add %k2, %k3" + type + "  %k = add %a, %b" + type + "  return %k\n}\n");
    for (int threads : {1, 2}) {
      CompileOptions options;
      options.threads = threads;
      ExpectAgreesWithInterpreter(graph, RandomInputs(graph), 2e-5, options);
    }
    const Executable executable = CompileForCpu(graph);
    std::vector<std::string> reordered;
    for (const auto& step : executable.steps) {
      const StepOperand& read = step->info().reads[0];
      if (step->info().name == "onednn.reorder" && read.name.starts_with("k")) reordered.push_back(read.name);
    }
    EXPECT_EQ(reordered, std::vector<std::string>{"k"}) << executable.ToString();
  }
}

// The layout of an op depends only on the graph, and the order of sums only on shapes.
TEST(ChannelsLastSteps, RunsAreBitwiseEqual) {
  const Graph step = TwoStageStep();
  const auto backend = CreateBackend("cpu");
  CompileOptions options;
  options.threads = 2;
  const auto inputs = RandomInputs(step);
  const auto first = RunInProcess(step, **backend, inputs, options);
  ASSERT_TRUE(first.ok()) << first.status();
  for (int run = 0; run < 3; ++run) {
    const auto again = RunInProcess(step, **backend, inputs, options);
    ASSERT_TRUE(again.ok()) << again.status();
    for (size_t i = 0; i < (*first)[0].size(); ++i) {
      const Tensor &a = (*first)[0][i], &b = (*again)[0][i];
      EXPECT_EQ(std::memcmp(a.bytes(), b.bytes(), a.num_bytes()), 0) << step.results()[i].name;
    }
  }
}

// --- Values ----------------------------------------------------------------------------------------------------------

struct LayoutCase {
  std::string name;
  int64_t loops;  // the number of loops with channels-last values
  std::string text;
};

// Each case begins with a convolution, whose result %z is channels-last.
std::vector<LayoutCase> Cases() {
  const std::string plain =
      "  %z = convolution %x, %k {dilation=[1,1], padding_high=[1,1], padding_low=[1,1], stride=[1,1]} : "
      "f32[4,7,6,5]\n";
  const auto with = [&](const std::string& inputs, const std::string& results, const std::string& rest) {
    return "graph @f(%x: f32[4,3,6,5], %k: f32[7,3,3,3]" + inputs + ") -> (" + results + ") {\n" + plain + rest + "}\n";
  };
  return {
      {"BroadcastsAndReductions", 3,
       with(", %b: f32[7], %m: f32[4,7], %r: f32[7,6]", "y: f32[4,7,6,5], s: f32[7], n: f32[4], q: f32[4,7]", R"(
  %bb = broadcast %b {dims=[1], shape=[4,7,6,5]} : f32[4,7,6,5]
  %mm = broadcast %m {dims=[0,1], shape=[4,7,6,5]} : f32[4,7,6,5]
  %rr = broadcast %r {dims=[1,2], shape=[4,7,6,5]} : f32[4,7,6,5]
  %u = add %z, %bb : f32[4,7,6,5]
  %v = mul %u, %mm : f32[4,7,6,5]
  %y = sub %v, %rr : f32[4,7,6,5]
  %s = reduce_sum %y {dims=[0,2,3]} : f32[7]
  %n = reduce_max %v {dims=[1,2,3]} : f32[4]
  %q = reduce_sum %z {dims=[2,3]} : f32[4,7]
  return %y, %s, %n, %q
)")},
      {"Iota", 1, with("", "y: f32[4,7,6,5]", R"(
  %i = iota {dim=2, dtype=f32, shape=[4,7,6,5]} : f32[4,7,6,5]
  %j = iota {dim=1, dtype=f32, shape=[4,7,6,5]} : f32[4,7,6,5]
  %u = mul %z, %i : f32[4,7,6,5]
  %y = add %u, %j : f32[4,7,6,5]
  return %y
)")},
      {"ReductionThatKeepsSpace", 0, with("", "y: f32[4,7,5]", R"(
  %u = tanh %z : f32[4,7,6,5]
  %y = reduce_sum %u {dims=[2]} : f32[4,7,5]
  return %y
)")},
      {"RowMajorOperand", 1, with(", %o: f32[4,7,6,5]", "y: f32[4,7,6,5], t: f32[4,7,6,5]", R"(
  %y = add %z, %o : f32[4,7,6,5]
  %p = max_pool %y {dilation=[1,1], padding_high=[0,0], padding_low=[1,1], stride=[1,1], window=[2,2]} : f32[4,7,6,5]
  %t = neg %o : f32[4,7,6,5]
  return %p, %t
)")},
      {"MoreRowMajorOperands", 0, with(", %o: f32[4,7,6,5], %p: f32[4,7,6,5]", "y: f32[4,7,6,5]", R"(
  %u = mul %o, %p : f32[4,7,6,5]
  %y = add %z, %u : f32[4,7,6,5]
  return %y
)")},
      {"ResultOfATypeThatOneDnnLacks", 0, with("", "y: bool[4,7,6,5]", R"(
  %o = tanh %z : f32[4,7,6,5]
  %y = compare %z, %o {direction=gt} : bool[4,7,6,5]
  return %y
)")},
      {"OperandOfATypeThatOneDnnLacks", 0, with(", %c: bool[4,7,6,5]", "y: f32[4,7,6,5]", R"(
  %o = tanh %z : f32[4,7,6,5]
  %y = select %c, %z, %o : f32[4,7,6,5]
  return %y
)")},
      {"Movers", 1, with("", "a: f32[4,210], b: f32[7,4,6,5], c: f32[4,2,3,5], d: f32[4,14,6,5], e: f32[4,8,6,5]", R"(
  %t = tanh %z : f32[4,7,6,5]
  %a = reshape %t {shape=[4,210]} : f32[4,210]
  %b = transpose %t {permutation=[1,0,2,3]} : f32[7,4,6,5]
  %c = slice %t {limit=[4,6,6,5], start=[0,2,0,0], stride=[1,2,2,1]} : f32[4,2,3,5]
  %d = concat %t, %z {dim=1} : f32[4,14,6,5]
  %e = pad %t {high=[0,1,0,0], low=[0,0,0,0], value=2.0} : f32[4,8,6,5]
  return %a, %b, %c, %d, %e
)")},
      {"BatchNormTraining", 2, with(", %s: f32[7], %b: f32[7]", "y: f32[4,7,6,5], m: f32[7], v: f32[7]", R"(
  %n, %m, %v = batch_norm_training %z, %s, %b {epsilon=1e-05} : f32[4,7,6,5], f32[7], f32[7]
  %y = relu %n : f32[4,7,6,5]
  return %y, %m, %v
)")},
      {"AveragePool", 1, with(", %d: f32[4,7,3,3]", "y: f32[4,7,3,3], g: f32[4,7,6,5]", R"(
  %t = tanh %z : f32[4,7,6,5]
  %y = avg_pool %t {include_padding=false, padding_high=[0,1], padding_low=[0,0], stride=[2,2], window=[2,2]} : f32[4,7,3,3]
  %e = avg_pool_grad %d {include_padding=false, input_shape=[4,7,6,5], padding_high=[0,1], padding_low=[0,0], stride=[2,2], window=[2,2]} : f32[4,7,6,5]
  %g = mul %e, %t : f32[4,7,6,5]
  return %y, %g
)")},
      {"Groups", 2, R"(
graph @f(%x: f32[3,9,5,5], %k: f32[6,3,3,3], %l: f32[6,1,2,2], %b: f32[6]) -> (y: f32[3,6,2,2], s: f32[6]) {
  %z = convolution %x, %k {dilation=[1,1], groups=3, padding_high=[1,1], padding_low=[1,1], stride=[2,2]} : f32[3,6,3,3]
  %bb = broadcast %b {dims=[1], shape=[3,6,3,3]} : f32[3,6,3,3]
  %t = add %z, %bb : f32[3,6,3,3]
  %u = convolution %t, %l {dilation=[1,1], groups=6, padding_high=[0,0], padding_low=[0,0], stride=[1,1]} : f32[3,6,2,2]
  %y = relu %u : f32[3,6,2,2]
  %s = reduce_sum %y {dims=[0,2,3]} : f32[6]
  return %y, %s
}
)"},
      {"OneSpatialDimension", 1, R"(
graph @f(%x: f32[3,5,11], %k: f32[17,5,3], %b: f32[17]) -> (y: f32[3,17,9], s: f32[17]) {
  %z = convolution %x, %k {dilation=[1], padding_high=[0], padding_low=[0], stride=[1]} : f32[3,17,9]
  %bb = broadcast %b {dims=[1], shape=[3,17,9]} : f32[3,17,9]
  %y = add %z, %bb : f32[3,17,9]
  %s = reduce_sum %y {dims=[0,2]} : f32[17]
  return %y, %s
}
)"},
      {"ThreeSpatialDimensions", 1, R"(
graph @f(%x: f32[2,3,4,5,6], %k: f32[5,3,2,3,2], %b: f32[5]) -> (y: f32[2,5,3,3,5], s: f32[5]) {
  %z = convolution %x, %k {dilation=[1,1,1], padding_high=[0,0,0], padding_low=[0,0,0], stride=[1,1,1]} : f32[2,5,3,3,5]
  %bb = broadcast %b {dims=[1], shape=[2,5,3,3,5]} : f32[2,5,3,3,5]
  %y = add %z, %bb : f32[2,5,3,3,5]
  %s = reduce_sum %y {dims=[0,2,3,4]} : f32[5]
  return %y, %s
}
)"},
      {"HalfPrecision", 1, R"(
graph @f(%x: bf16[2,3,5,5], %k: bf16[7,3,2,2], %b: bf16[7]) -> (y: bf16[2,7,4,4]) {
  %z = convolution %x, %k {dilation=[1,1], padding_high=[0,0], padding_low=[0,0], stride=[1,1]} : bf16[2,7,4,4]
  %bb = broadcast %b {dims=[1], shape=[2,7,4,4]} : bf16[2,7,4,4]
  %u = add %z, %bb : bf16[2,7,4,4]
  %y = relu %u : bf16[2,7,4,4]
  return %y
}
)"},
  };
}

class ChannelsLastValues : public testing::TestWithParam<LayoutCase> {};

TEST_P(ChannelsLastValues, AgreeWithInterpreter) {
  const Graph graph = Parse(GetParam().text);
  const bool is_half = graph.inputs()[0].value.dtype() != DType::kF32;
  for (int threads : {1, 2}) {
    CompileOptions options;
    options.threads = threads;
    ExpectAgreesWithInterpreter(graph, RandomInputs(graph), is_half ? 2e-2 : 2e-5, options);
  }
  const Executable executable = CompileForCpu(graph);
  EXPECT_EQ(LoopsChannelsLast(executable), GetParam().loops) << executable.ToString() << executable.graph_text;
}

INSTANTIATE_TEST_SUITE_P(All, ChannelsLastValues, testing::ValuesIn(Cases()),
                         [](const auto& info) { return info.param.name; });

// Ranks send row-major values, except for an all_reduce, which works in any layout.
TEST(ChannelsLastCollectives, AgreeWithInterpreter) {
  const Graph graph = Parse(R"(
mesh {data=2}
local graph @f(%x: f32[2,3,6,5] split(0), %p: f32[2,3,6,5] partial(sum), %l: f32[2,3,6,5] local, %u: f32[2,3,6,5], %k: f32[4,3,3,3], %m: f32[4,3,3,3] split(0)) -> (a: f32[4,4,4,3], b: f32[2,8,4,3], c: f32[1,4,4,3] split(0), d: f32[2,4,4,3], e: f32[2,4,4,3]) {
  %zx = convolution %x, %k {dilation=[1,1], padding_high=[0,0], padding_low=[0,0], stride=[1,1]} : f32[2,4,4,3] split(0)
  %zm = convolution %u, %m {dilation=[1,1], padding_high=[0,0], padding_low=[0,0], stride=[1,1]} : f32[2,4,4,3] split(1)
  %zp = convolution %p, %k {dilation=[1,1], padding_high=[0,0], padding_low=[0,0], stride=[1,1]} : f32[2,4,4,3] partial(sum)
  %zl = convolution %l, %k {dilation=[1,1], padding_high=[0,0], padding_low=[0,0], stride=[1,1]} : f32[2,4,4,3] local
  %a = all_gather %zx {axis=data, dim=0} : f32[4,4,4,3]
  %b = all_gather %zm {axis=data, dim=1} : f32[2,8,4,3]
  %c = reduce_scatter %zp {axis=data, dim=0, kind=sum} : f32[1,4,4,3] split(0)
  %d = all_reduce %zp {axis=data, kind=sum} : f32[2,4,4,3]
  %t = tanh %d : f32[2,4,4,3]
  %e = collective_broadcast %zl {axis=data, root=1} : f32[2,4,4,3]
  return %a, %b, %c, %t, %e
}
)");
  CompileOptions options;
  options.mesh = graph.mesh();
  for (bool optimize : {false, true}) {
    options.optimize = optimize;
    ExpectAgreesWithInterpreter(graph, RandomInputs(graph), 2e-5, options);
  }
  const Executable executable = CompileForCpu(graph, options);
  int reduced = 0;
  for (const auto& step : executable.steps) {
    if (step->info().name != "all_reduce.start") continue;
    ++reduced;
    EXPECT_TRUE(IsChannelsLast(step->info().reads[0])) << executable.ToString();
  }
  EXPECT_EQ(reduced, 1);
  EXPECT_EQ(LoopsChannelsLast(executable), 1) << executable.ToString();
}

}  // namespace
}  // namespace lockstep
