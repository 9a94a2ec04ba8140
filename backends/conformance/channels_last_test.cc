// Channels-last values (docs/decisions/0006), compared with the interpreter: a network with all that is between
// convolutions, forward and with gradients, and what reads and moves such values, on one rank and on several. All
// channels are multiples of 8, with which convolutions on GPUs are channels-last in 16 bits and in TF32.

#include "backends/compile.h"
#include "backends/conformance/compare_with_interpreter.h"
#include "backends/conformance/tested_backend.h"
#include "core/local_types.h"
#include "core/printer.h"
#include "gtest/gtest.h"
#include "passes/distribute/distribute.h"
#include "passes/training/train_step.h"
#include "passes/training/training_mode.h"

namespace lockstep {
namespace {

// Parses a text in which F stands for the dtype.
Graph Parse(std::string text, const std::string& dtype = "f32") {
  for (size_t at; (at = text.find("F[")) != std::string::npos;) text.replace(at, 1, dtype);
  auto graph = ParseGraph(text);
  LOCKSTEP_CHECK(graph.ok()) << graph.status() << " in " << text;
  return std::move(*graph);
}

void ExpectAgrees(const Graph& graph, double tolerance) {
  CompileOptions options;
  options.tf32 = IsGpu();
  options.mesh = graph.mesh();
  options.bucket_bytes = 1024;
  for (bool optimize : {true, false}) {
    SCOPED_TRACE(testing::Message() << "optimize " << optimize);
    options.optimize = optimize;
    ExpectAgreesWithInterpreter(graph, RandomInputs(graph), tolerance, options);
  }
}

// The stem has three channels, with which convolutions on GPUs are row-major.
constexpr char kNetwork[] = R"(
graph @network(%x: F[4,3,9,9] split(0), state %k: F[8,3,3,3], state %s: F[8], state %b: F[8], state %m: F[8], state %v: F[8], state %l: F[8,8,3,3], state %c: F[8], state %n: F[16,8,1,1], state %w: F[10,64]) -> (logits: F[4,10] split(0)) {
  %0 = convolution %x, %k {dilation=[1,1], padding_high=[1,1], padding_low=[1,1], stride=[1,1]} : F[4,8,9,9]
  %1 = batch_norm_inference %0, %s, %b, %m, %v {epsilon=0.1} : F[4,8,9,9]
  %2 = relu %1 : F[4,8,9,9]
  %3 = max_pool %2 {dilation=[1,1], padding_high=[0,0], padding_low=[1,1], stride=[2,2], window=[2,2]} : F[4,8,5,5]
  %4 = convolution %3, %l {dilation=[1,1], padding_high=[1,1], padding_low=[1,1], stride=[1,1]} : F[4,8,5,5]
  %5 = broadcast %c {dims=[1], shape=[4,8,5,5]} : F[4,8,5,5]
  %6 = add %4, %5 : F[4,8,5,5]
  %7 = relu %6 : F[4,8,5,5]
  %8 = add %7, %3 : F[4,8,5,5]
  %9 = convolution %8, %n {dilation=[1,1], padding_high=[0,0], padding_low=[0,0], stride=[1,1]} : F[4,16,5,5]
  %10 = tanh %9 : F[4,16,5,5]
  %11 = avg_pool %10 {include_padding=false, padding_high=[0,0], padding_low=[0,0], stride=[3,3], window=[2,2]} : F[4,16,2,2]
  %12 = reshape %11 {shape=[4,64]} : F[4,64]
  %13 = matmul %12, %w {transpose_b=true} : F[4,10]
  return %13
}
)";

TEST(ChannelsLastNetwork, Forward) {
  ExpectAgrees(Parse(kNetwork), IsGpu() ? 5e-3 : 2e-5);
  ExpectAgrees(Parse(kNetwork, "bf16"), 3e-2);
}

TEST(ChannelsLastNetwork, TrainingSteps) {
  for (const DType precision : {DType::kF32, DType::kBF16}) {
    Graph step = Parse(kNetwork);
    ASSERT_TRUE(passes::RunPasses({passes::TrainingMode({.statistics = "rank"})}, step).ok());
    passes::TrainStepSpec spec;
    spec.precision = precision;
    spec.optimizer.options["momentum"] = 0.9;
    ASSERT_TRUE(passes::MakeTrainStep(step, spec).ok());
    const double tolerance = precision == DType::kBF16 ? 5e-2 : IsGpu() ? 1e-2 : 5e-5;
    ExpectAgrees(step, tolerance);
    const auto placed = passes::DistributeGraph(step, Mesh({{"data", 2}}));
    ASSERT_TRUE(placed.ok()) << placed.status();
    const auto local = ToLocalTypes(*placed);
    ASSERT_TRUE(local.ok()) << local.status();
    ExpectAgrees(*local, tolerance);
  }
}

struct Readers {
  std::string name, inputs, results, body;
};

class ChannelsLastReaders : public testing::TestWithParam<Readers> {};

// Each case begins with a convolution, whose result is %z.
TEST_P(ChannelsLastReaders, AgreeWithInterpreter) {
  const auto& [name, inputs, results, body] = GetParam();
  for (const std::string dtype : {"f32", "bf16"}) {
    const Graph graph = Parse(
        "graph @f(%x: F[4,8,6,5], %k: F[8,8,3,3]" + inputs + ") -> (" + results +
            ") {\n%z = convolution %x, %k {dilation=[1,1], padding_high=[1,1], padding_low=[1,1], stride=[1,1]} : "
            "F[4,8,6,5]" +
            body + "}\n",
        dtype);
    ExpectAgrees(graph, dtype == "bf16" ? 3e-2 : IsGpu() ? 5e-3 : 2e-5);
  }
}

const Readers kReaders[] = {
    {"Convolutions", ", %l: F[16,8,1,1]", "y: F[4,16,6,5], z: F[4,8,6,5], d: F[8,8,3,3]", R"(
  %y = convolution %z, %l {dilation=[1,1], padding_high=[0,0], padding_low=[0,0], stride=[1,1]} : F[4,16,6,5]
  %g = convolution_grad_input %l, %y {dilation=[1,1], input_shape=[4,8,6,5], padding_high=[0,0], padding_low=[0,0], stride=[1,1]} : F[4,8,6,5]
  %h = mul %g, %z : F[4,8,6,5]
  %d = convolution_grad_filter %x, %h {dilation=[1,1], filter_shape=[8,8,3,3], padding_high=[1,1], padding_low=[1,1], stride=[1,1]} : F[8,8,3,3]
  %n = neg %d : F[8,8,3,3]
  return %y, %z, %n
)"},
    {"BroadcastsAndReductions", ", %b: F[8], %m: F[4,8], %r: F[8,6]", "y: F[4,8,6,5], s: F[8], n: F[4], q: F[4,8]", R"(
  %bb = broadcast %b {dims=[1], shape=[4,8,6,5]} : F[4,8,6,5]
  %mm = broadcast %m {dims=[0,1], shape=[4,8,6,5]} : F[4,8,6,5]
  %rr = broadcast %r {dims=[1,2], shape=[4,8,6,5]} : F[4,8,6,5]
  %u = add %z, %bb : F[4,8,6,5]
  %v = mul %u, %mm : F[4,8,6,5]
  %y = sub %v, %rr : F[4,8,6,5]
  %s = reduce_sum %y {dims=[0,2,3]} : F[8]
  %n = reduce_max %v {dims=[1,2,3]} : F[4]
  %q = reduce_sum %z {dims=[2,3]} : F[4,8]
  return %y, %s, %n, %q
)"},
    {"ReductionThatKeepsSpace", "", "y: F[4,8,5]", R"(
  %u = tanh %z : F[4,8,6,5]
  %y = reduce_sum %u {dims=[2]} : F[4,8,5]
  return %y
)"},
    {"RowMajorOperands", ", %o: F[4,8,6,5], %p: F[4,8,6,5]", "y: F[4,8,6,5], s: F[8]", R"(
  %u = mul %o, %p : F[4,8,6,5]
  %v = add %z, %u : F[4,8,6,5]
  %y = max_pool %v {dilation=[1,1], padding_high=[0,0], padding_low=[1,1], stride=[1,1], window=[2,2]} : F[4,8,6,5]
  %s = reduce_sum %v {dims=[0,2,3]} : F[8]
  return %y, %s
)"},
    {"Movers", "", "a: F[4,240], b: F[8,4,6,5], c: F[4,2,3,5], d: F[4,16,6,5], e: F[4,9,6,5], g: F[16,60]", R"(
  %t = tanh %z : F[4,8,6,5]
  %a = reshape %t {shape=[4,240]} : F[4,240]
  %b = transpose %t {permutation=[1,0,2,3]} : F[8,4,6,5]
  %c = slice %t {limit=[4,6,6,5], start=[0,2,0,0], stride=[1,2,2,1]} : F[4,2,3,5]
  %d = concat %t, %z {dim=1} : F[4,16,6,5]
  %e = pad %t {high=[0,1,0,0], low=[0,0,0,0], value=2.0} : F[4,9,6,5]
  %f = reshape %z {shape=[16,60]} : F[16,60]
  %g = exp %f : F[16,60]
  return %a, %b, %c, %d, %e, %g
)"},
    {"Pools", ", %d: F[4,8,3,3]", "y: F[4,8,3,3], g: F[4,8,6,5], m: F[4,8,3,3], h: F[4,8,6,5], c: F[4,8,5,4]", R"(
  %t = tanh %z : F[4,8,6,5]
  %y = avg_pool %t {include_padding=false, padding_high=[0,1], padding_low=[0,0], stride=[2,2], window=[2,2]} : F[4,8,3,3]
  %e = avg_pool_grad %d {include_padding=false, input_shape=[4,8,6,5], padding_high=[0,1], padding_low=[0,0], stride=[2,2], window=[2,2]} : F[4,8,6,5]
  %g = mul %e, %t : F[4,8,6,5]
  %m = max_pool %z {dilation=[1,1], padding_high=[0,1], padding_low=[0,0], stride=[2,2], window=[2,2]} : F[4,8,3,3]
  %h = max_pool_grad %z, %d {dilation=[1,1], padding_high=[0,1], padding_low=[0,0], stride=[2,2], window=[2,2]} : F[4,8,6,5]
  %q = max_pool %x {dilation=[1,1], padding_high=[0,0], padding_low=[0,0], stride=[1,1], window=[2,2]} : F[4,8,5,4]
  %c = convolution %q, %k {dilation=[1,1], padding_high=[1,1], padding_low=[1,1], stride=[1,1]} : F[4,8,5,4]
  return %y, %g, %m, %h, %c
)"},
    {"OneDimension", ", %u: F[4,8,6], %l: F[8,8,3]", "y: F[4,8,4], s: F[8]", R"(
  %w = convolution %u, %l {dilation=[1], padding_high=[0], padding_low=[0], stride=[1]} : F[4,8,4]
  %y = relu %w : F[4,8,4]
  %s = reduce_sum %y {dims=[0,2]} : F[8]
  return %y, %s
)"},
    {"ThreeDimensions", ", %u: F[2,8,3,4,3], %l: F[8,8,2,3,2]", "y: F[2,8,2,2,2], s: F[8]", R"(
  %w = convolution %u, %l {dilation=[1,1,1], padding_high=[0,0,0], padding_low=[0,0,0], stride=[1,1,1]} : F[2,8,2,2,2]
  %y = relu %w : F[2,8,2,2,2]
  %s = reduce_sum %y {dims=[0,2,3,4]} : F[8]
  return %y, %s
)"},
    {"StepsOfALoop", ", %h: F[1,8,3,3], %u: F[4,1,8,3,3]", "h: F[1,8,3,3], y: F[4,1,8,3,3]", R"(
  %last, %all = scan %h, %u, %k {carried=1, length=4, scanned=1, body=
    graph @step(%h: F[1,8,3,3], %u: F[1,8,3,3], %k: F[8,8,3,3]) -> (h: F[1,8,3,3], y: F[1,8,3,3]) {
      %z = convolution %u, %k {dilation=[1,1], padding_high=[1,1], padding_low=[1,1], stride=[1,1]} : F[1,8,3,3]
      %t = tanh %z : F[1,8,3,3]
      %n = add %t, %h : F[1,8,3,3]
      return %n, %z
    }} : F[1,8,3,3], F[4,1,8,3,3]
  return %last, %all
)"},
    {"Groups", ", %u: F[2,16,4,4], %l: F[16,8,3,3]", "y: F[2,16,4,4]", R"(
  %w = convolution %u, %l {dilation=[1,1], groups=2, padding_high=[1,1], padding_low=[1,1], stride=[1,1]} : F[2,16,4,4]
  %y = relu %w : F[2,16,4,4]
  return %y
)"},
};

INSTANTIATE_TEST_SUITE_P(All, ChannelsLastReaders, testing::ValuesIn(kReaders),
                         [](const auto& info) { return info.param.name; });

// Ranks send row-major values, except for an all_reduce, which works in any layout.
TEST(ChannelsLastCollectives, AgreeWithInterpreter) {
  const Graph graph = Parse(R"(
mesh {data=2}
local graph @f(%x: F[2,8,6,5] split(0), %p: F[2,8,6,5] partial(sum), %l: F[2,8,6,5] local, %u: F[2,8,6,5], %k: F[8,8,3,3], %m: F[8,8,3,3] split(0)) -> (a: F[4,8,4,3], b: F[2,16,4,3], c: F[1,8,4,3] split(0), d: F[2,8,4,3], e: F[2,8,4,3]) {
  %zx = convolution %x, %k {dilation=[1,1], padding_high=[0,0], padding_low=[0,0], stride=[1,1]} : F[2,8,4,3] split(0)
  %zm = convolution %u, %m {dilation=[1,1], padding_high=[0,0], padding_low=[0,0], stride=[1,1]} : F[2,8,4,3] split(1)
  %zp = convolution %p, %k {dilation=[1,1], padding_high=[0,0], padding_low=[0,0], stride=[1,1]} : F[2,8,4,3] partial(sum)
  %zl = convolution %l, %k {dilation=[1,1], padding_high=[0,0], padding_low=[0,0], stride=[1,1]} : F[2,8,4,3] local
  %a = all_gather %zx {axis=data, dim=0} : F[4,8,4,3]
  %b = all_gather %zm {axis=data, dim=1} : F[2,16,4,3]
  %c = reduce_scatter %zp {axis=data, dim=0, kind=sum} : F[1,8,4,3] split(0)
  %d = all_reduce %zp {axis=data, kind=sum} : F[2,8,4,3]
  %t = tanh %d : F[2,8,4,3]
  %e = collective_broadcast %zl {axis=data, root=1} : F[2,8,4,3]
  return %a, %b, %c, %t, %e
}
)");
  ExpectAgrees(graph, IsGpu() ? 5e-3 : 2e-5);
}

}  // namespace
}  // namespace lockstep
