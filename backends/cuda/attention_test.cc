// Which attention has a kernel on GPUs, and which moves its kernels make themselves. //backends/conformance compares
// the kernels with the interpreter.

#include <algorithm>
#include <cmath>
#include <string>
#include <vector>

#include "backends/compile.h"
#include "backends/cuda/attention_views.h"
#include "backends/cuda/cuda_backend.h"
#include "core/interpreter.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "test/fake_cuda/run.h"

namespace lockstep::cuda {
namespace {

using testing::ElementsAre;
using testing::UnorderedElementsAre;

// True if the cuda backend has a kernel for attention of q [2, 3, 5, size], of 7 keys, and also for its gradients.
bool HasKernels(const std::string& dtype, int64_t size, int64_t value_size, bool tf32 = false) {
  const std::string keys = std::to_string(size) + "]", values = std::to_string(value_size) + "]",
                    statistics = std::string(dtype == "f64" ? "f64" : "f32") + "[2,3,5]", q = dtype + "[2,3,5," + keys,
                    k = dtype + "[2,3,7," + keys, v = dtype + "[2,3,7," + values, y = dtype + "[2,3,5," + values;
  const Graph graph = ParseForTest("graph @f(%q: " + q + ", %k: " + k + ", %v: " + v + ", %dy: " + y +
                                   ", %delta: " + statistics + ") -> (y: " + y + ", dq: " + q + ", dk: " + k +
                                   ", dv: " + v + ") {\n%y, %l = attention %q, %k, %v " + "{scale=1} : " + y + ", " +
                                   statistics + "\n%dq, %dk, %dv = attention_grad %q, %k, %v, %l, %dy, " +
                                   "%delta {scale=1} : " + q + ", " + k + ", " + v + "\nreturn %y, %dq, %dk, %dv\n}");
  TargetOptions options;
  options.isa = "h200";
  options.tf32 = tf32;
  const auto target = CreateCudaBackend()->MakeTarget(options);
  EXPECT_TRUE(target.ok()) << target.status();
  size_t count = 0;
  for (const Node& node : graph.nodes()) count += target->supports(node) ? 1 : 0;
  EXPECT_TRUE(count == 0 || count == graph.nodes().size());
  return count > 0;
}

TEST(Attention, HasKernelsFor16BitsAndForF32UnderTf32) {
  EXPECT_TRUE(HasKernels("bf16", 64, 64));
  EXPECT_TRUE(HasKernels("f16", 64, 64));
  EXPECT_FALSE(HasKernels("f32", 64, 64));
  EXPECT_TRUE(HasKernels("f32", 64, 64, /*tf32=*/true));
  EXPECT_FALSE(HasKernels("f64", 64, 64, /*tf32=*/true));
}

TEST(Attention, HasKernelsForRowsOfMultiplesOf16BytesUpTo128Elements) {
  EXPECT_TRUE(HasKernels("bf16", 8, 128));
  EXPECT_TRUE(HasKernels("bf16", 72, 40));
  EXPECT_FALSE(HasKernels("bf16", 4, 8));
  EXPECT_FALSE(HasKernels("bf16", 8, 12));
  EXPECT_FALSE(HasKernels("bf16", 136, 8));
  EXPECT_FALSE(HasKernels("bf16", 8, 136));
  EXPECT_TRUE(HasKernels("f32", 4, 12, /*tf32=*/true));
  EXPECT_FALSE(HasKernels("f32", 6, 12, /*tf32=*/true));
}

// --- Moves -----------------------------------------------------------------------------------------------------------

// Runs the graph on a fake GPU, compares its results with the interpreter's, and returns the names of its steps,
// sorted.
std::vector<std::string> StepsOf(const std::string& text) {
  const Graph graph = ParseForTest(text);
  const std::vector<Tensor> inputs = InputsForTest(graph);
  const auto found = RunOnFake(graph, inputs), expected = InterpretOneRank(graph, inputs);
  EXPECT_TRUE(found.ok()) << found.status();
  EXPECT_TRUE(expected.ok()) << expected.status();
  for (size_t i = 0; found.ok() && i < expected->size(); ++i) {
    for (int64_t at = 0; at < (*expected)[i].num_elements(); ++at)
      EXPECT_NEAR((*found)[i].At(at), (*expected)[i].At(at), 0.02) << "result " << i << " at " << at;
  }
  CompileOptions options;
  options.isa = "h200";
  const auto executable = Compile(graph.Clone(), *CreateCudaBackend(), options);
  EXPECT_TRUE(executable.ok()) << executable.status();
  std::vector<std::string> names;
  for (const auto& step : executable->steps) names.push_back(step->info().name);
  std::sort(names.begin(), names.end());
  return names;
}

// q, k and v are thirds of a value, as in a block of a language model: 2 sequences of 5 tokens, 2 heads of 8 elements.
// Further lines, and the lists of inputs and results, are the test's.
std::string Thirds(const std::string& results, const std::string& lines, const std::string& k_start = "16") {
  const std::string k_limit = std::to_string(std::stoi(k_start) + 16);
  const auto head = [](const std::string& name, const std::string& start, const std::string& limit) {
    return "%" + name + "s = slice %x {start=[0, 0, " + start + "], limit=[2, 5, " + limit +
           "], stride=[1, 1, 1]} : f16[2,5,16]\n%" + name + "r = reshape %" + name +
           "s {shape=[2, 5, 2, 8]} : f16[2,5,2,8]\n%" + name + " = transpose %" + name +
           "r {permutation=[0, 2, 1, 3]} : f16[2,2,5,8]\n";
  };
  return "graph @f(%x: f16[2,5,48], %dz: f16[2,5,16], %delta: f32[2,2,5]) -> (" + results + ") {\n" +
         head("q", "0", "16") + head("k", k_start, k_limit) + head("v", "32", "48") +
         "%y, %l = attention %q, %k, %v {scale=0.5, causal=true} : f16[2,2,5,8], f32[2,2,5]\n"
         "%yt = transpose %y {permutation=[0, 2, 1, 3]} : f16[2,5,2,8]\n"
         "%z = reshape %yt {shape=[2, 5, 16]} : f16[2,5,16]\n" +
         lines + "}";
}

constexpr char kGradients[] =
    "%dzr = reshape %dz {shape=[2, 5, 2, 8]} : f16[2,5,2,8]\n"
    "%dy = transpose %dzr {permutation=[0, 2, 1, 3]} : f16[2,2,5,8]\n"
    "%dq, %dk, %dv = attention_grad %q, %k, %v, %l, %dy, %delta {scale=0.5, causal=true} : f16[2,2,5,8], "
    "f16[2,2,5,8], f16[2,2,5,8]\n"
    "%dqt = transpose %dq {permutation=[0, 2, 1, 3]} : f16[2,5,2,8]\n"
    "%dqr = reshape %dqt {shape=[2, 5, 16]} : f16[2,5,16]\n"
    "%dkt = transpose %dk {permutation=[0, 2, 1, 3]} : f16[2,5,2,8]\n"
    "%dkr = reshape %dkt {shape=[2, 5, 16]} : f16[2,5,16]\n"
    "%dvt = transpose %dv {permutation=[0, 2, 1, 3]} : f16[2,5,2,8]\n"
    "%dvr = reshape %dvt {shape=[2, 5, 16]} : f16[2,5,16]\n";

TEST(AttentionMoves, KernelsReadAndWriteThePartsOfAValue) {
  EXPECT_THAT(StepsOf(Thirds("z: f16[2,5,16]", "return %z\n")), ElementsAre("cuda.attention"));
  EXPECT_THAT(StepsOf(Thirds(
                  "z: f16[2,5,16], dx: f16[2,5,48]",
                  std::string(kGradients) + "%dx = concat %dkr, %dqr, %dvr {dim=2} : f16[2,5,48]\nreturn %z, %dx\n")),
              ElementsAre("cuda.attention", "cuda.attention_grad"));
}

TEST(AttentionMoves, AResultThatIsJoinedWithAnotherValueIsOnlyTransposed) {
  EXPECT_THAT(StepsOf(Thirds("z: f16[2,5,16], dx: f16[2,5,32], dv: f16[2,5,16], dqr: f16[2,5,16]",
                             std::string(kGradients) +
                                 "%dx = concat %dkr, %dz {dim=2} : f16[2,5,32]\nreturn %z, %dx, %dvr, %dqr\n")),
              ElementsAre("cuda.attention", "cuda.attention_grad", "cuda.concat"));
}

// Here q is also a result, and k begins at an address that kernels do not read: element 20 of f16.
TEST(AttentionMoves, OthersAreSteps) {
  EXPECT_THAT(StepsOf(Thirds("z: f16[2,5,16], q: f16[2,2,5,8]", "return %z, %q\n")),
              ElementsAre("cuda.attention", "ptx.slice", "ptx.transpose"));
  EXPECT_THAT(StepsOf(Thirds("z: f16[2,5,16]", "return %z\n", "20")),
              ElementsAre("cuda.attention", "ptx.slice", "ptx.transpose"));
}

// A result that is read in both forms, as in training, is transposed for one of them.
TEST(AttentionMoves, AResultWithTwoReadersIsNotMoved) {
  EXPECT_THAT(StepsOf(Thirds("z: f16[2,5,16], n: f16[2,2,5,8]", "%n = neg %y : f16[2,2,5,8]\nreturn %z, %n\n")),
              UnorderedElementsAre("cuda.attention", "ptx.neg", "ptx.transpose"));
}

// --- Strided views ---------------------------------------------------------------------------------------------------

// The positions in the base of all elements of the view, in row-major order.
std::vector<int64_t> PositionsIn(const StridedView& view) {
  std::vector<int64_t> positions;
  for (int64_t i = 0; i < view.shape.num_elements(); ++i) {
    int64_t at = view.offset, rest = i;
    for (int64_t dim = view.shape.rank() - 1; dim >= 0; --dim) {
      at += rest % view.shape[dim] * view.strides[static_cast<size_t>(dim)];
      rest /= view.shape[dim];
    }
    positions.push_back(at);
  }
  return positions;
}

TEST(StridedView, KeepsTheOrderOfElements) {
  Graph graph("f");
  StridedView view(*graph.AddInput("x", {DType::kF32, {2, 3, 4}}));
  view.Slice({0, 1, 0}, {1, 1, 2}, {2, 2, 2});
  EXPECT_THAT(PositionsIn(view), ElementsAre(4, 6, 8, 10, 16, 18, 20, 22));
  ASSERT_TRUE(view.Reshape({2, 4, 1}));  // the second and third dimension have equal distances
  EXPECT_THAT(PositionsIn(view), ElementsAre(4, 6, 8, 10, 16, 18, 20, 22));
  view.Transpose({1, 2, 0});
  EXPECT_THAT(PositionsIn(view), ElementsAre(4, 16, 6, 18, 8, 20, 10, 22));
  EXPECT_FALSE(StridedView(view).Reshape({8}));
  ASSERT_TRUE(view.Reshape({1, 2, 2, 1, 2}));
  EXPECT_THAT(PositionsIn(view), ElementsAre(4, 16, 6, 18, 8, 20, 10, 22));
}

}  // namespace
}  // namespace lockstep::cuda
