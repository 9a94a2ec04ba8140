#include "backends/roofline.h"

#include "backends/compile.h"
#include "core/printer.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"

namespace lockstep {
namespace {

using testing::HasSubstr;

Executable CompiledFor(const std::string& backend, const std::string& text, const std::string& isa, bool tf32 = false) {
  CompileOptions options;
  options.isa = isa;
  options.tf32 = tf32;
  absl::StatusOr<Graph> graph = ParseGraph(text);
  EXPECT_TRUE(graph.ok()) << graph.status();
  absl::StatusOr<Executable> executable = Compile(*std::move(graph), **CreateBackend(backend), options);
  EXPECT_TRUE(executable.ok()) << executable.status();
  return *std::move(executable);
}

const Ceilings kRound = {.machine = "a test", .bytes_per_second = 1e3, .operations_per_second = {1e3, 5e2, 2e3, 4e3}};

std::string Product(const std::string& dtype) {
  return "graph @f(%a: " + dtype + "[8,16], %b: " + dtype + "[16,4]) -> (y: " + dtype +
         "[8,4]) {\n%y = matmul %a, %b : " + dtype + "[8,4] @\"torch:blocks.3.attention/node_MatMul_5\"\nreturn %y\n}";
}

// 8 x 4 x 16 multiplications and additions, and 128 + 64 + 32 elements.
TEST(RooflineOf, AProduct) {
  for (const auto& [dtype, tf32, rate, bytes] :
       {std::tuple("f32", false, 1e3, 896), std::tuple("f32", true, 2e3, 896), std::tuple("f64", true, 5e2, 1792),
        std::tuple("bf16", false, 4e3, 448), std::tuple("f16", true, 4e3, 448)}) {
    const Executable executable = CompiledFor("cuda", Product(dtype), "h200", tf32);
    const Roofline roofline = RooflineOf(executable, kRound);
    ASSERT_EQ(roofline.steps.size(), 1u);
    EXPECT_DOUBLE_EQ(roofline.steps[0].by_operations, 1024 / rate) << dtype;
    EXPECT_DOUBLE_EQ(roofline.steps[0].by_bytes, bytes / 1e3) << dtype;
    EXPECT_DOUBLE_EQ(roofline.all.seconds, std::max(1024 / rate, bytes / 1e3)) << dtype;
    EXPECT_DOUBLE_EQ(roofline.all.by_operations, 1024 / rate > bytes / 1e3 ? roofline.all.seconds : 0) << dtype;
    EXPECT_EQ(roofline.least_bytes, bytes) << dtype;
  }
}

// A gradient in mixed precision is one product of 16-bit operands, which are not converted.
TEST(RooflineOf, AProductWithAWideResult) {
  for (const std::string dtype : {"bf16", "f16"}) {
    const Executable executable =
        CompiledFor("cuda",
                    "graph @f(%a: " + dtype + "[8,16], %b: " + dtype + "[16,4]) -> (y: f32[8,4]) {\n" +
                        "%y = matmul %a, %b {wide_result=true} : f32[8,4]\nreturn %y\n}",
                    "h200");
    const Roofline roofline = RooflineOf(executable, kRound);
    ASSERT_EQ(roofline.steps.size(), 1u) << executable.ToString();
    EXPECT_DOUBLE_EQ(roofline.steps[0].by_operations, 1024 / 4e3);
    EXPECT_DOUBLE_EQ(roofline.all.bytes, 2 * (128 + 64) + 4 * 32);
  }
}

TEST(RooflineOf, SumsAreByKindAndByLayer) {
  const Executable executable = CompiledFor("cuda", R"(graph @f(%a: f32[8,8], %b: f32[8,8]) -> (y: f32[8,8]) {
    %1 = matmul %a, %b : f32[8,8] @"torch:blocks.3.attention.out/node_MatMul_5"
    %2 = matmul %1, %b : f32[8,8] @"gradient of torch:blocks.3.mlp/node_MatMul_5"
    %3 = matmul %2, %b : f32[8,8] @"onnx:/head/out/MatMul"
    %4 = matmul %3, %b : f32[8,8] @"onnx:MatMul_7"
    %5 = tanh %4 : f32[8,8] @"optimizer of head"
    %6 = matmul %5, %b : f32[8,8] @"gradient of python:conv1/model.py:17"
    %y = matmul %6, %b : f32[8,8]
    return %y
  })",
                                            "h200");
  const auto sums = [&](const std::vector<FloorSum>& found) {
    std::vector<std::pair<std::string, int64_t>> pairs;
    for (const FloorSum& sum : found) pairs.emplace_back(sum.name, sum.steps);
    return pairs;
  };
  const Roofline roofline = RooflineOf(executable, kRound);
  EXPECT_THAT(sums(roofline.kinds),
              testing::ElementsAre(testing::Pair("cublaslt.matmul", 6), testing::Pair("ptx.tanh", 1)));
  EXPECT_THAT(sums(roofline.layers),
              testing::UnorderedElementsAre(testing::Pair("blocks.3", 2), testing::Pair("head/out", 1),
                                            testing::Pair("MatMul_7", 1), testing::Pair("optimizer", 1),
                                            testing::Pair("conv1", 1), testing::Pair("other", 1)));
  EXPECT_THAT(sums(RooflineOf(executable, kRound, /*depth=*/1).layers), testing::Contains(testing::Pair("blocks", 2)));
  EXPECT_EQ(roofline.all.steps, 7);
  // Seven steps, each bound by its bytes: three matrices, and two of the tanh.
  EXPECT_DOUBLE_EQ(roofline.all.bytes, 6 * 3 * 256 + 2 * 256);
  const std::string text = roofline.ToString(/*most_steps=*/7);
  EXPECT_THAT(text, HasSubstr("(a test)"));
  EXPECT_THAT(text, HasSubstr("at onnx:/head/out/MatMul"));
  EXPECT_EQ(roofline.ToString(0).find("at onnx:"), std::string::npos);
}

std::string ThreeSteps() {
  return R"(graph @f(%a: f32[8,8], %b: f32[8,8]) -> (y: f32[8,8]) {
    %1 = matmul %a, %b : f32[8,8] @"torch:blocks.3.attention.out/node_MatMul_5"
    %2 = tanh %1 : f32[8,8] @"torch:blocks.3.act/node_Tanh_1"
    %y = matmul %2, %b : f32[8,8] @"torch:head/node_MatMul_3"
    return %y
  })";
}

// 2 x 8 x 8 x 8 operations at 1e3 a second take longer than 3 x 256 bytes, and a tanh moves 2 x 256. The second product
// is faster than its least time.
TEST(RooflineOf, MeasuredTimesAreComparedWithLeastTimes) {
  const Executable executable = CompiledFor("cuda", ThreeSteps(), "h200");
  const Roofline roofline = RooflineOf(executable, kRound, /*depth=*/1, std::vector<double>{1.5, 0.75, 0.5});
  ASSERT_TRUE(roofline.is_measured);
  std::vector<double> lost;
  for (const StepFloor& floor : roofline.steps) lost.push_back(floor.lost);
  EXPECT_THAT(lost, testing::Pointwise(testing::DoubleNear(1e-12), {1.5 - 1.024, 0.75 - 0.512, 0.5 - 1.024}));
  EXPECT_DOUBLE_EQ(roofline.all.measured, 2.75);
  EXPECT_NEAR(roofline.all.lost, 2.75 - 2 * 1.024 - 0.512, 1e-12);
  ASSERT_EQ(roofline.kinds.size(), 2u);
  EXPECT_EQ(roofline.kinds[0].name, "ptx.tanh");  // lost most, although its least time is the shortest
  EXPECT_NEAR(roofline.kinds[1].lost, 2.0 - 2.048, 1e-12);
  ASSERT_EQ(roofline.layers.size(), 2u);
  EXPECT_EQ(roofline.layers[0].name, "blocks");
  const std::string text = roofline.ToString(/*most_steps=*/1);
  EXPECT_THAT(text, HasSubstr("faster than their least time: 1 of 3 steps, by 524.000 ms in all\n"));
  EXPECT_THAT(text, HasSubstr("at torch:blocks.3.attention.out"));
  EXPECT_EQ(text.find("at torch:head"), std::string::npos);
}

TEST(RooflineOf, WithoutTimesNothingIsLost) {
  const Executable executable = CompiledFor("cuda", ThreeSteps(), "h200");
  const Roofline roofline = RooflineOf(executable, kRound, 1, std::vector<double>(3, 0.0));
  EXPECT_FALSE(roofline.is_measured);
  EXPECT_EQ(roofline.all.lost, 0);
  EXPECT_EQ(roofline.ToString(3), RooflineOf(executable, kRound, 1).ToString(3));
}

// Of an operand that is sliced or gathered from, only what is read counts.
TEST(RooflineOf, PartsOfOperands) {
  const Executable executable =
      CompiledFor("cuda", R"(graph @f(%x: f32[100,8], %i: i64[2]) -> (y: f32[2,8], z: f32[10,8]) {
    %y = gather %x, %i {dim=0} : f32[2,8]
    %1 = slice %x {start=[0, 0], limit=[10, 8], stride=[1, 1]} : f32[10,8]
    %z = tanh %1 : f32[10,8]
    return %y, %z
  })",
                  "h200");
  const Roofline roofline = RooflineOf(executable, kRound);
  EXPECT_DOUBLE_EQ(roofline.all.bytes, (64 + 16 + 64) + (320 + 320));
}

TEST(Ceilings, OfKnownGpusAndOfThisProcessor) {
  const auto of_h200 = CompiledFor("cuda", Product("f32"), "h200").ceilings();
  ASSERT_TRUE(of_h200.ok()) << of_h200.status();
  EXPECT_EQ(of_h200->machine, "NVIDIA H200, measured on one");
  EXPECT_DOUBLE_EQ(of_h200->bytes_per_second, 4.3e12);
  EXPECT_DOUBLE_EQ(of_h200->rate(Arithmetic::k16Bits), 7.9e14);
  const auto here = CompiledFor("cpu", Product("f32"), "").ceilings();
  ASSERT_TRUE(here.ok()) << here.status();
  EXPECT_EQ(here->machine, "1 thread of this processor, measured");
  EXPECT_GT(here->bytes_per_second, 1e8);
  EXPECT_LT(here->bytes_per_second, 1e12);
  EXPECT_GT(here->rate(Arithmetic::kF32), 1e8);
  EXPECT_LT(here->rate(Arithmetic::kF32), 1e13);
  EXPECT_GE(here->rate(Arithmetic::k16Bits), here->rate(Arithmetic::kF32));
}

}  // namespace
}  // namespace lockstep
