// Convolutions on the fake cuDNN: the calls, the chosen engine, and the messages if no engine is suitable. The op cases
// test the numbers (//backends/conformance:fake-cuda_op_cases_test).

#include <cmath>

#include "backends/cuda/convolution_problem.h"
#include "core/interpreter.h"
#include "core/printer.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "test/fake_cuda/run.h"

namespace lockstep::cuda {
namespace {

using testing::AllOf;
using testing::ElementsAre;
using testing::HasSubstr;
using testing::IsEmpty;
using testing::Not;

std::string ConvolutionText(const std::string& dtype) {
  const std::string x = dtype + "[2,4,8,7]", filter = dtype + "[6,2,3,3]", y = dtype + "[2,6,8,4]";
  return "graph @f(%x: " + x + ", %w: " + filter + ", %dy: " + y + ") -> (y: " + y + ", dx: " + x + ", dw: " + filter +
         ") {\n%y = convolution %x, %w {stride=[1, 2], padding_low=[1, 1], padding_high=[1, 2], dilation=[1, 1], "
         "groups=2} : " +
         y +
         " @\"onnx:/conv\"\n%dx = convolution_grad_input %w, %dy {stride=[1, 2], padding_low=[1, 1], "
         "padding_high=[1, 2], dilation=[1, 1], groups=2, input_shape=[2, 4, 8, 7]} : " +
         x +
         "\n%dw = convolution_grad_filter %x, %dy {stride=[1, 2], padding_low=[1, 1], padding_high=[1, 2], "
         "dilation=[1, 1], groups=2, filter_shape=[6, 2, 3, 3]} : " +
         filter + "\nreturn %y, %dx, %dw\n}";
}

class ConvolutionTest : public testing::Test {
 protected:
  void SetUp() override {
    fake_.ResetEngines();
    fake_.TakeCalls();
    fake_.TakeMisuse();
  }
  void TearDown() override {
    EXPECT_THAT(fake_.TakeMisuse(), IsEmpty());
    EXPECT_EQ(fake_.live(), 0) << "descriptors or handles that are not destroyed";
  }

  absl::StatusOr<std::vector<Tensor>> Run(const Graph& graph, bool tf32 = false, int times = 1) {
    CompileOptions options;
    options.tf32 = tf32;
    return RunOnFake(graph, InputsForTest(graph), options, times);
  }
  void ExpectRight(const Graph& graph, const std::vector<Tensor>& found, double tolerance) {
    const auto expected = InterpretOneRank(graph, InputsForTest(graph));
    ASSERT_TRUE(expected.ok()) << expected.status();
    for (size_t i = 0; i < expected->size(); ++i) {
      for (int64_t at = 0; at < (*expected)[i].num_elements(); ++at) {
        ASSERT_NEAR(found[i].At(at), (*expected)[i].At(at), tolerance) << "result " << i << " at " << at;
      }
    }
  }

  FakeCudnn& fake_ = TheFakeCudnn();
};

TEST_F(ConvolutionTest, CallsWithWhatTheNodeSays) {
  const Graph graph = ParseForTest(ConvolutionText("f32"));
  const auto results = Run(graph);
  ASSERT_TRUE(results.ok()) << results.status();
  ExpectRight(graph, *results, 1e-5);
  const std::string sides = " x[2, 4, 8, 7] w[6, 2, 3, 3] y[2, 6, 8, 4]";
  const std::string rest = ", padding [1, 1]+[1, 2], stride [1, 2], dilation [1, 1], f32, engine 3";
  EXPECT_THAT(fake_.TakeCalls(), testing::UnorderedElementsAre("convolution forward" + sides + rest,
                                                               "convolution backward data" + sides + rest,
                                                               "convolution backward filter" + sides + rest));
}

// The first engine in the heuristics' list that may be used: with tensor cores if they do not round the dtype, or on
// request.
TEST_F(ConvolutionTest, TakesEnginesThatKeepToTheType) {
  for (const auto& [dtype, tf32, engine, tolerance] :
       {std::tuple("f32", false, 3, 1e-5), std::tuple("f32", true, 7, 2e-2), std::tuple("f16", false, 7, 2e-2),
        std::tuple("bf16", false, 7, 0.2), std::tuple("f64", false, 7, 1e-12)}) {
    const Graph graph = ParseForTest(ConvolutionText(dtype));
    const auto results = Run(graph, tf32);
    ASSERT_TRUE(results.ok()) << results.status();
    ExpectRight(graph, *results, tolerance);
    const std::vector<std::string> calls = fake_.TakeCalls();
    EXPECT_EQ(calls.size(), 3u);
    for (const std::string& call : calls) {
      EXPECT_THAT(call, testing::EndsWith(std::string(dtype) + ", engine " + std::to_string(engine)));
    }
  }
}

// The gradient of a filter in mixed precision has operands of 16 bits and a result of f32.
Graph WideGradient(const std::string& dtype, const std::string& filter, const std::string& attributes,
                   const std::string& dy = "2,6,8,7") {
  return ParseForTest("graph @f(%x: " + dtype + "[2,4,8,7], %dy: " + dtype + "[" + dy + "]) -> (dw: f32[" + filter +
                      "]) {\n%dw = convolution_grad_filter %x, %dy {dilation=[1, 1], filter_shape=[" + filter + "], " +
                      attributes + ", wide_result=true} : f32[" + filter + "]\nreturn %dw\n}");
}

TEST_F(ConvolutionTest, AWideGradientIsRoundedOnce) {
  for (const auto& [dtype, half_ulp] : {std::pair<std::string, double>("f16", 0x1p-11), {"bf16", 0x1p-8}}) {
    const Graph graph =
        WideGradient(dtype, "6,2,3,3", "stride=[1, 1], padding_low=[1, 1], padding_high=[1, 1], groups=2");
    const auto results = Run(graph);
    ASSERT_TRUE(results.ok()) << results.status();
    EXPECT_THAT(fake_.TakeCalls(), ElementsAre(testing::EndsWith(", " + dtype + ", engine 7")));
    const Tensor expected = InterpretOneRank(graph, InputsForTest(graph)).value()[0];
    for (int64_t i = 0; i < expected.num_elements(); ++i) {
      ASSERT_NEAR((*results)[0].At(i), expected.At(i), half_ulp * std::fabs(expected.At(i)) + 1e-6);
    }
  }
}

// With one tap, it is a product of matrices, whose result is f32.
TEST_F(ConvolutionTest, AWideGradientOfPointwiseFiltersIsAProduct) {
  const std::string pointwise = "stride=[1, 1], padding_low=[0, 0], padding_high=[0, 0]";
  for (const std::string dtype : {"f16", "bf16"}) {
    const Graph graph = WideGradient(dtype, "6,4,1,1", pointwise);
    const auto results = Run(graph);
    ASSERT_TRUE(results.ok()) << results.status();
    ExpectRight(graph, *results, 1e-5);
    EXPECT_THAT(fake_.TakeCalls(), IsEmpty());
  }
  for (const std::string attributes : {"stride=[1, 1], padding_low=[0, 0], padding_high=[0, 0], groups=2",
                                       "stride=[2, 1], padding_low=[7, 0], padding_high=[0, 0]",
                                       "stride=[2, 1], padding_low=[0, 0], padding_high=[7, 0]"}) {
    const bool has_groups = attributes.find("groups") != std::string::npos;
    const Graph graph = WideGradient("bf16", has_groups ? "6,2,1,1" : "6,4,1,1", attributes);
    ASSERT_TRUE(Run(graph).ok());
    EXPECT_THAT(fake_.TakeCalls(), ElementsAre(HasSubstr("convolution backward filter"))) << attributes;
  }
  // Of every second point, as where a residual network halves its images.
  const Graph graph =
      WideGradient("bf16", "6,4,1,1", "stride=[2, 2], padding_low=[0, 0], padding_high=[0, 0]", "2,6,4,4");
  ASSERT_TRUE(Run(graph).ok());
  EXPECT_THAT(fake_.TakeCalls(), ElementsAre(HasSubstr("convolution backward filter")));
}

std::string WithChannels(const std::string& dtype, int64_t channels, int64_t filters) {
  const std::string c = std::to_string(channels), k = std::to_string(filters);
  return "graph @f(%x: " + dtype + "[2," + c + ",5,4], %w: " + dtype + "[" + k + "," + c + ",3,3]) -> (y: " + dtype +
         "[2," + k + ",5,4]) {\n%y = convolution %x, %w {stride=[1, 1], padding_low=[1, 1], padding_high=[1, 1], " +
         "dilation=[1, 1]} : " + dtype + "[2," + k + ",5,4]\nreturn %y\n}";
}

// Where tensor cores multiply and channels fill units of 16 bytes, all tensors are channels-last. The fake has no
// kernel for tensor cores that takes other channels-last tensors.
TEST_F(ConvolutionTest, IsChannelsLastWhereTensorCoresReadIt) {
  struct Row {
    const char* dtype;
    bool tf32;
    int64_t channels, filters;
    const char* end;
    double tolerance;
  };
  for (const Row& row :
       {Row{"bf16", false, 8, 16, "bf16 channels-last, engine 7", 0.1},
        Row{"f16", false, 16, 8, "f16 channels-last, engine 7", 1e-2},
        Row{"bf16", false, 3, 8, "bf16 channels-last, engine 7", 0.1}, Row{"bf16", false, 8, 12, "bf16, engine 7", 0.1},
        Row{"f32", true, 4, 8, "f32 channels-last, engine 7", 2e-2}, Row{"f32", true, 3, 8, "f32, engine 7", 2e-2},
        Row{"f32", false, 4, 8, "f32, engine 3", 1e-5}, Row{"f64", false, 4, 8, "f64, engine 7", 1e-12}}) {
    const Graph graph = ParseForTest(WithChannels(row.dtype, row.channels, row.filters));
    const auto results = Run(graph, row.tf32);
    ASSERT_TRUE(results.ok()) << results.status();
    ExpectRight(graph, *results, row.tolerance);
    EXPECT_THAT(fake_.TakeCalls(), ElementsAre(testing::EndsWith(row.end)));
  }
}

// Each kind of engine that must not be used is skipped, and the next heuristics are asked.
TEST_F(ConvolutionTest, AsksTheNextHeuristics) {
  for (cudnnBackendNumericalNote_t note :
       {CUDNN_NUMERICAL_NOTE_NONDETERMINISTIC, CUDNN_NUMERICAL_NOTE_DOWN_CONVERT_INPUTS,
        CUDNN_NUMERICAL_NOTE_REDUCED_PRECISION_REDUCTION, CUDNN_NUMERICAL_NOTE_FFT, CUDNN_NUMERICAL_NOTE_WINOGRAD,
        CUDNN_NUMERICAL_NOTE_WINOGRAD_TILE_4x4, CUDNN_NUMERICAL_NOTE_WINOGRAD_TILE_6x6,
        CUDNN_NUMERICAL_NOTE_WINOGRAD_TILE_13x13, CUDNN_NUMERICAL_NOTE_TENSOR_CORE}) {
    fake_.SetEngines(CUDNN_HEUR_MODE_A, {{.index = 20, .notes = {CUDNN_NUMERICAL_NOTE_STRICT_NAN_PROP, note}}});
    fake_.SetEngines(CUDNN_HEUR_MODE_B, {});
    fake_.SetEngines(CUDNN_HEUR_MODE_FALLBACK, {{.index = 21, .notes = {}, .workspace = 0}});
    const auto results = Run(ParseForTest(ConvolutionText("f32")));
    ASSERT_TRUE(results.ok()) << results.status();
    for (const std::string& call : fake_.TakeCalls()) EXPECT_THAT(call, HasSubstr(", engine 21")) << note;
  }
}

TEST_F(ConvolutionTest, AnErrorSaysWhatWasTried) {
  fake_.SetEngines(CUDNN_HEUR_MODE_A, {{.index = 5, .notes = {CUDNN_NUMERICAL_NOTE_NONDETERMINISTIC}},
                                       {.index = 6, .notes = {}, .workspace = 4096, .takes = false}});
  fake_.SetEngines(CUDNN_HEUR_MODE_B, {});
  fake_.SetEngines(CUDNN_HEUR_MODE_FALLBACK, {{.index = 7, .notes = {}, .workspace = int64_t{1} << 33}});
  const absl::Status status = Run(ParseForTest(ConvolutionText("f32"))).status();
  EXPECT_EQ(status.code(), absl::StatusCode::kUnimplemented);
  EXPECT_THAT(std::string(status.message()),
              AllOf(HasSubstr("convolution"),
                    HasSubstr("of x[2,4,8,7], filter[6,2,3,3], y[2,6,8,4], padding [1, 1]+[1, 2], stride [1, 2]"),
                    HasSubstr("no engine for it that may be used with a workspace of"),
                    HasSubstr("mode A, engine 5: not deterministic, engine 6: cuDNN: cudnnBackendFinalize of the plan: "
                              "CUDNN_STATUS_NOT_SUPPORTED (3000): the engine does not take it"),
                    HasSubstr("mode B: no engine"),
                    HasSubstr("the fallback, engine 7: wants a workspace of 8589934592 bytes")));
}

// Plans are created once, with one handle for the program.
TEST_F(ConvolutionTest, RunsAgain) {
  fake_.SetEngines(CUDNN_HEUR_MODE_A, {{.index = 8, .notes = {}}});
  const int64_t plans = fake_.plans_made(), handles = fake_.handles_made();
  const Graph graph = ParseForTest(ConvolutionText("f32"));
  const auto results = Run(graph, false, 3);
  ASSERT_TRUE(results.ok()) << results.status();
  ExpectRight(graph, *results, 1e-5);
  EXPECT_EQ(fake_.TakeCalls().size(), 6u);  // the third run launches a CUDA graph of the second
  EXPECT_EQ(fake_.plans_made() - plans, 3);
  EXPECT_EQ(fake_.handles_made() - handles, 1);
}

// --- The problem ---------------------------------------------------------------------------------------------------

ConvolutionProblem ProblemOf(const Graph& graph, uint32_t alignment = 64) {
  for (const Node& node : graph.nodes()) {
    if (node.Is("convolution")) return {node, /*tf32=*/false, alignment};
  }
  LOCKSTEP_CHECK(false) << "no convolution";
  std::abort();
}

TEST(ConvolutionProblemTest, TensorsAreInTheOrderOfTheNode) {
  for (const char* dtype : {"f64", "f32", "bf16"}) {
    const Graph graph = ParseForTest(ConvolutionText(dtype));
    for (const Node& node : graph.nodes()) {
      EXPECT_THAT(
          ConvolutionProblem(node, false, 64).BytesOfTensors(),
          ElementsAre(node.operand(0).type().num_bytes(), node.operand(1).type().num_bytes(), node.type().num_bytes()))
          << node.Describe();
    }
  }
}

TEST(ConvolutionProblemTest, OneSpatialDimensionIsSeenAsTwo) {
  const ConvolutionProblem problem =
      ProblemOf(ParseForTest(R"(graph @f(%x: f32[6,2,9], %w: f32[2,2,3]) -> (y: f32[6,2,4]) {
    %y = convolution %x, %w {stride=[2], padding_low=[0], padding_high=[2], dilation=[2]} : f32[6,2,4]
    return %y
  })"));
  EXPECT_THAT(problem.x.dims, ElementsAre(6, 2, 1, 9));
  EXPECT_THAT(problem.x.strides, ElementsAre(18, 9, 9, 1));
  EXPECT_THAT(problem.filter.dims, ElementsAre(2, 2, 1, 3));
  EXPECT_THAT(problem.stride, ElementsAre(1, 2));
  EXPECT_THAT(problem.padding_high, ElementsAre(0, 2));
  EXPECT_THAT(problem.dilation, ElementsAre(1, 2));
}

TEST(ConvolutionProblemTest, IsChannelsLastAtAlignedAddresses) {
  const Graph graph = ParseForTest(WithChannels("bf16", 8, 16));
  const ConvolutionProblem aligned = ProblemOf(graph, 16), other = ProblemOf(graph, 8);
  EXPECT_THAT(aligned.x.strides, ElementsAre(160, 1, 32, 8));
  EXPECT_THAT(aligned.filter.strides, ElementsAre(72, 1, 24, 8));
  EXPECT_THAT(aligned.y.strides, ElementsAre(320, 1, 64, 16));
  EXPECT_THAT(aligned.ToString(), testing::EndsWith("bf16, channels-last"));
  EXPECT_THAT(other.x.strides, ElementsAre(160, 20, 4, 1));
}

// Each group of the filters must fill units of 16 bytes, like each group of the channels.
TEST(ConvolutionProblemTest, IsChannelsLastIfTheChannelsOfEachGroupFillUnits) {
  for (const int64_t filters : {8, 16}) {
    const std::string k = std::to_string(filters);
    const ConvolutionProblem problem =
        ProblemOf(ParseForTest("graph @f(%x: bf16[2,16,5,4], %w: bf16[" + k + ",8,3,3]) -> (y: bf16[2," + k +
                               ",5,4]) {\n%y = convolution %x, %w {stride=[1, 1], padding_low=[1, 1], "
                               "padding_high=[1, 1], dilation=[1, 1], groups=2} : bf16[2," +
                               k + ",5,4]\nreturn %y\n}"));
    EXPECT_EQ(problem.channels_last, filters == 16);
  }
}

// The workspace has room for the three tensors with channels in eights: 3 channels become 8, 6 become 8.
TEST(ConvolutionProblemTest, TheWorkspaceHasRoomForCopies) {
  const ConvolutionProblem problem =
      ProblemOf(ParseForTest(R"(graph @f(%x: f16[2,3,8,8], %w: f16[6,3,3,3]) -> (y: f16[2,6,6,6]) {
    %y = convolution %x, %w {stride=[1, 1], padding_low=[0, 0], padding_high=[0, 0], dilation=[1, 1]} : f16[2,6,6,6]
    return %y
  })"));
  EXPECT_EQ(problem.WorkspaceLimit(), (uint64_t{32} << 20) + 2 * (2 * 8 * 64 + 6 * 8 * 9 + 2 * 8 * 36));
}

// Slices of a loop are adjacent in memory: the second slice of x begins 36 bytes after the first. The fake refuses
// addresses that are less aligned than the descriptor says.
TEST_F(ConvolutionTest, SlicesOfALoopAreAlignedAsTheyLie) {
  for (const std::string dtype : {"f32", "f16", "f64"}) {
    std::string text =
        R"(graph @f(%h: F[1,1,3,3], %x: F[4,1,1,3,3], %w: F[1,1,3,3]) -> (h: F[1,1,3,3], y: F[4,1,1,3,3]) {
      %last, %all = scan %h, %x, %w {carried=1, length=4, scanned=1, body=
        graph @step(%h: F[1,1,3,3], %x: F[1,1,3,3], %w: F[1,1,3,3]) -> (h: F[1,1,3,3], y: F[1,1,3,3]) {
          %z = convolution %x, %w {stride=[1, 1], padding_low=[1, 1], padding_high=[1, 1], dilation=[1, 1], groups=1} : F[1,1,3,3]
          %n = add %z, %h : F[1,1,3,3]
          return %n, %z
        }} : F[1,1,3,3], F[4,1,1,3,3]
      return %last, %all
    })";
    for (size_t at; (at = text.find("F[")) != std::string::npos;) text.replace(at, 1, dtype);
    const Graph graph = ParseForTest(text);
    const auto results = Run(graph);
    ASSERT_TRUE(results.ok()) << dtype << ": " << results.status();
    EXPECT_THAT(fake_.TakeCalls(), testing::SizeIs(4));
    ExpectRight(graph, *results, dtype == "f16" ? 1e-2 : 1e-5);
  }
}

}  // namespace
}  // namespace lockstep::cuda
