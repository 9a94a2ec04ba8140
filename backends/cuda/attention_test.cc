// Which attention has a kernel on GPUs, and which moves its kernels make themselves. //backends/conformance compares
// the kernels with the interpreter.

#include <algorithm>
#include <cmath>
#include <numeric>
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

// True if there is a kernel for attention of q, of k, which is also v, and of a mask if it has a shape.
bool HasKernel(const std::string& q, const std::string& k, const std::string& mask = "") {
  const std::string y = "bf16[" + q + "]", statistics = "f32[" + q.substr(0, q.rfind(',')) + "]";
  const Graph graph =
      ParseForTest("graph @f(%q: " + y + ", %k: bf16[" + k + "]" + (mask.empty() ? "" : ", %m: bool[" + mask + "]") +
                   ") -> (y: " + y + ") {\n%y, %l = attention %q, %k, %k" + (mask.empty() ? "" : ", %m") +
                   " {scale=1} : " + y + ", " + statistics + "\nreturn %y\n}");
  TargetOptions options;
  options.isa = "h200";
  const auto target = CreateCudaBackend()->MakeTarget(options);
  EXPECT_TRUE(target.ok()) << target.status();
  return target->supports(graph.nodes().front());
}

TEST(Attention, HasKernelsForPositionsWhoseSumsFitIn32Bits) {
  EXPECT_TRUE(HasKernel("536870912,8", "536870912,8"));
  EXPECT_FALSE(HasKernel("536870913,8", "8,8"));
  EXPECT_FALSE(HasKernel("8,8", "536870913,8"));
}

TEST(Attention, HasKernelsForMasksOfHeadsAtEqualDistances) {
  EXPECT_TRUE(HasKernel("2,3,4,5,8", "2,3,4,7,8", "2,3,4,5,7"));
  EXPECT_TRUE(HasKernel("2,3,4,5,8", "2,3,4,7,8", "2,3,1,5,7"));
  EXPECT_TRUE(HasKernel("2,3,4,5,8", "2,3,4,7,8", "1,1,4,1,7"));
  EXPECT_FALSE(HasKernel("2,3,4,5,8", "2,3,4,7,8", "1,3,4,5,7"));
  EXPECT_FALSE(HasKernel("2,3,4,5,8", "2,3,4,7,8", "2,1,4,5,7"));
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

// In training a fusion reads y and its gradient as well, and computes `delta` from them. It reads them in the order in
// which they are in memory.
TEST(AttentionMoves, AFusionReadsWhatAttentionReadsAndWrites) {
  std::string gradients = kGradients;
  const std::string delta = "%delta";
  gradients.replace(gradients.find(delta), delta.size(), "%sum");
  gradients.insert(gradients.find("%dq, "),
                   "%yw = convert %y {dtype=f32} : f32[2,2,5,8]\n%dyw = convert %dy {dtype=f32} : f32[2,2,5,8]\n"
                   "%p = mul %yw, %dyw : f32[2,2,5,8]\n%sum = reduce_sum %p {dims=[3]} : f32[2,2,5]\n");
  EXPECT_THAT(
      StepsOf(Thirds("z: f16[2,5,16], dx: f16[2,5,48], sum: f32[2,2,5]",
                     gradients + "%dx = concat %dkr, %dqr, %dvr {dim=2} : f16[2,5,48]\nreturn %z, %dx, %sum\n")),
      ElementsAre("cuda.attention", "cuda.attention_grad", "ptx.fusion"));
}

// A result that another step than a fusion reads in its first form is transposed for the other readers.
TEST(AttentionMoves, AResultWithTwoReadersIsNotMoved) {
  EXPECT_THAT(StepsOf(Thirds("z: f16[2,5,16], n: f16[2,2,5,8]", "%n = neg %y : f16[2,2,5,8]\nreturn %z, %n\n")),
              UnorderedElementsAre("cuda.attention", "ptx.neg", "ptx.transpose"));
}

// --- Views -----------------------------------------------------------------------------------------------------------

// The positions in the base of all elements of a view of this shape, in row-major order.
std::vector<double> PositionsIn(const AttentionView& view, const Shape& shape) {
  const int64_t rank = shape.rank(), size = shape[rank - 1], rows = shape[rank - 2];
  std::vector<double> positions;
  for (int64_t i = 0; i < shape.num_elements(); ++i) {
    const int64_t row = i / size % rows, head = i / size / rows;
    positions.push_back(static_cast<double>(view.offset + head / view.rows.heads * view.rows.batch +
                                            head % view.rows.heads * view.rows.head + row * view.rows.row + i % size));
  }
  return positions;
}

// The number of each element of a tensor, in f16.
Tensor Numbers(const Shape& shape) {
  std::vector<double> numbers(static_cast<size_t>(shape.num_elements()));
  std::iota(numbers.begin(), numbers.end(), 0);
  return Tensor::Of<double>(shape, numbers).Converted(DType::kF16);
}

std::vector<double> ElementsOf(const Tensor& tensor) {
  std::vector<double> elements;
  for (int64_t i = 0; i < tensor.num_elements(); ++i) elements.push_back(tensor.At(i));
  return elements;
}

// `moves` are the lines that make %q, of the shape `q`, out of %x. Returns true if attention, whose k is also %q, reads
// q in %x, and checks where.
bool ReadsThrough(const std::string& x, const std::string& moves, const std::string& q) {
  const std::string type = "f16[" + q + "]", statistics = "f32[" + q.substr(0, q.rfind(',')) + "]";
  const Graph graph =
      ParseForTest("graph @f(%x: f16[" + x + "], %v: " + type + ") -> (y: " + type + ") {\n" + moves +
                   "\n%y, %l = attention %q, %q, %v {scale=1} : " + type + ", " + statistics + "\nreturn %y\n}");
  const Graph moved = ParseForTest("graph @f(%x: f16[" + x + "]) -> (q: " + type + ") {\n" + moves + "\nreturn %q\n}");
  const Node& attention = *graph.results()[0].value.node;
  const AttentionViews views(graph);
  const AttentionView view = views.OfOperand(attention, 0);
  bool through = view.base == graph.inputs()[0].value;
  for (const Node& node : graph.nodes()) EXPECT_EQ(views.Contains(node), through && !node.Is("attention"));
  if (!through) return false;
  const auto expected = InterpretOneRank(moved, {Numbers(view.base.shape())});
  EXPECT_TRUE(expected.ok()) << expected.status();
  EXPECT_EQ(PositionsIn(view, (*expected)[0].shape()), ElementsOf((*expected)[0]));
  return true;
}

TEST(AttentionViews, ReadRowsAtAnyDistance) {
  EXPECT_TRUE(ReadsThrough("6,32", "%q = slice %x {start=[1, 8], limit=[5, 16], stride=[1, 1]} : f16[4,8]", "4,8"));
  EXPECT_TRUE(ReadsThrough("8,24", "%q = slice %x {start=[1, 0], limit=[8, 24], stride=[2, 1]} : f16[4,24]", "4,24"));
  EXPECT_TRUE(ReadsThrough("4,2,3,8", "%q = transpose %x {permutation=[2, 0, 1, 3]} : f16[3,4,2,8]", "3,4,2,8"));
  EXPECT_TRUE(
      ReadsThrough("2,3,5,4,8", "%q = transpose %x {permutation=[0, 1, 3, 2, 4]} : f16[2,3,4,5,8]", "2,3,4,5,8"));
  EXPECT_TRUE(ReadsThrough("3,4,8",
                           "%s = slice %x {start=[1, 0, 0], limit=[2, 4, 8], stride=[1, 1, 1]} : f16[1,4,8]\n"
                           "%t = transpose %s {permutation=[1, 0, 2]} : f16[4,1,8]\n"
                           "%q = reshape %t {shape=[2, 16]} : f16[2,16]",
                           "2,16"));
}

TEST(AttentionViews, AreOfRowsOfAdjacentElements) {
  EXPECT_FALSE(ReadsThrough("4,16", "%q = slice %x {start=[0, 0], limit=[4, 16], stride=[1, 2]} : f16[4,8]", "4,8"));
  EXPECT_FALSE(ReadsThrough("2,8,8", "%q = transpose %x {permutation=[0, 2, 1]} : f16[2,8,8]", "2,8,8"));
  // A row has the elements of two heads.
  EXPECT_FALSE(ReadsThrough("2,4,8",
                            "%t = transpose %x {permutation=[1, 0, 2]} : f16[4,2,8]\n"
                            "%q = reshape %t {shape=[4, 16]} : f16[4,16]",
                            "4,16"));
}

TEST(AttentionViews, HaveLeadingDimensionsAtEqualDistances) {
  EXPECT_FALSE(
      ReadsThrough("2,3,2,4,8", "%q = transpose %x {permutation=[1, 0, 2, 3, 4]} : f16[3,2,2,4,8]", "3,2,2,4,8"));
}

TEST(AttentionViews, BeginAndContinueAtMultiplesOf16Bytes) {
  const auto part = [](const std::string& x, const std::string& start, const std::string& limit,
                       const std::string& shape, const std::string& q) {
    const std::string stride = start.find(',') == std::string::npos ? "1" : "1, 1";
    return ReadsThrough(x,
                        "%s = slice %x {start=[" + start + "], limit=[" + limit + "], stride=[" + stride + "]} : f16[" +
                            shape + "]\n%q = reshape %s {shape=[" + q + "]} : f16[" + q + "]",
                        q);
  };
  EXPECT_TRUE(part("32", "8", "32", "24", "3,8"));
  EXPECT_FALSE(part("32", "4", "28", "24", "3,8"));
  EXPECT_FALSE(part("4,12", "0, 0", "4, 8", "4,8", "4,8"));
  EXPECT_FALSE(part("4,20", "0, 0", "4, 16", "4,16", "4,2,8"));
  EXPECT_FALSE(part("4,36", "0, 0", "4, 32", "4,32", "4,2,2,8"));
  EXPECT_FALSE(part("28", "0", "24", "24", "3,8"));  // in a scan the next %x begins after 56 bytes
}

// Moves of y that nothing else reads are not steps either.
TEST(AttentionViews, ResultsAreWrittenAtAnyDistance) {
  const std::string moves =
      "%t = transpose %y {permutation=[2, 0, 1, 3]} : f16[4,2,3,8]\n%z = reshape %t {shape=[8, 24]} : f16[8,24]\n";
  const Graph graph = ParseForTest(
      "graph @f(%q: f16[2,3,4,8]) -> (z: f16[8,24]) {\n%y, %l = attention %q, %q, %q {scale=1} : f16[2,3,4,8], "
      "f32[2,3,4]\n" +
      moves + "return %z\n}");
  const Graph moved = ParseForTest("graph @f(%y: f16[2,3,4,8]) -> (z: f16[8,24]) {\n" + moves + "return %z\n}");
  const AttentionView view = AttentionViews(graph).OfResult(graph.nodes().front(), 0);
  ASSERT_EQ(view.base, graph.results()[0].value);
  const auto numbers = InterpretOneRank(moved, {Numbers({2, 3, 4, 8})});
  ASSERT_TRUE(numbers.ok()) << numbers.status();
  const std::vector<double> positions = PositionsIn(view, {2, 3, 4, 8});
  for (size_t i = 0; i < positions.size(); ++i)
    EXPECT_EQ((*numbers)[0].At(static_cast<int64_t>(positions[i])), static_cast<double>(i));
}

// In each graph a value is needed as it is: a result of the graph, a part of a concat with others or with a part that
// no kernel writes, and an operand of another attention that the first one writes after a move.
TEST(AttentionViews, DoNotTakeValuesFromOthers) {
  const Graph result = ParseForTest(
      "graph @f(%q: f16[2,4,8]) -> (y: f16[2,4,8], t: f16[4,2,8]) {\n%y, %l = attention %q, %q, %q {scale=1} : "
      "f16[2,4,8], f32[2,4]\n%t = transpose %y {permutation=[1, 0, 2]} : f16[4,2,8]\nreturn %y, %t\n}");
  EXPECT_FALSE(AttentionViews(result).Contains(result.nodes().back()));

  const Graph with_other = ParseForTest(
      "graph @f(%q: f16[2,4,8]) -> (z: f16[2,8,8]) {\n%y, %l = attention %q, %q, %q {scale=1} : f16[2,4,8], f32[2,4]\n"
      "%z = concat %y, %q {dim=1} : f16[2,8,8]\nreturn %z\n}");
  EXPECT_FALSE(AttentionViews(with_other).Contains(with_other.nodes().back()));

  const Graph with_transposed = ParseForTest(
      "graph @f(%q: f16[8,8], %l: f32[8]) -> (z: f16[24,8]) {\n%dq, %dk, %dv = attention_grad %q, %q, %q, %l, %q, %l "
      "{scale=1} : f16[8,8], f16[8,8], f16[8,8]\n%t = transpose %dq {permutation=[1, 0]} : f16[8,8]\n"
      "%z = concat %t, %dk, %dv {dim=0} : f16[24,8]\nreturn %z\n}");
  const Node& gradients = with_transposed.nodes().front();
  EXPECT_EQ(AttentionViews(with_transposed).OfResult(gradients, 1).base, with_transposed.nodes().back().operand(1));

  const Graph twice = ParseForTest(
      "graph @f(%q: f16[4,4,8]) -> (z: f16[4,4,8]) {\n%y, %l = attention %q, %q, %q {scale=1} : f16[4,4,8], f32[4,4]\n"
      "%t = transpose %y {permutation=[1, 0, 2]} : f16[4,4,8]\n"
      "%z, %m = attention %t, %q, %q {scale=1} : f16[4,4,8], f32[4,4]\nreturn %z\n}");
  const Node &first = twice.nodes().front(), &second = twice.nodes().back();
  EXPECT_EQ(AttentionViews(twice).OfResult(first, 0).base, second.operand(0));
  EXPECT_EQ(AttentionViews(twice).OfOperand(second, 0).base, second.operand(0));
}

// Returns a graph in which a fusion of `v` with this body reads y of attention, which is also transposed and reshaped:
// `v` is %y or its transpose %t.
Graph WithFusion(const std::string& v, const std::string& body) {
  return ParseForTest(
      "graph @f(%q: f16[2,3,4,8]) -> (z: f16[2,4,24], u: f16[192]) {\n%y, %l = attention %q, %q, %q {scale=1} : "
      "f16[2,3,4,8], f32[2,3,4]\n%t = transpose %y {permutation=[0, 2, 1, 3]} : f16[2,4,3,8]\n%u = fusion " +
      v.substr(0, 2) + " {body=graph @fused(" + v + ") -> (u: f16[192]) {\n" + body +
      "%u = reshape %r {shape=[192]} : f16[192]\nreturn %u\n}} : f16[192]\n"
      "%z = reshape %t {shape=[2, 4, 24]} : f16[2,4,24]\nreturn %z, %u\n}");
}

const Node& FusionOf(const Graph& graph) {
  return *std::find_if(graph.nodes().begin(), graph.nodes().end(), [](const Node& node) { return node.Is("fusion"); });
}

TEST(AttentionViews, FusionsReadResultsAsTheyAreWritten) {
  const Graph first = WithFusion("%y: f16[2,3,4,8]", "%r = neg %y : f16[2,3,4,8]\n");
  const AttentionViews of_first(first);
  EXPECT_EQ(of_first.OfResult(first.nodes().front(), 0).base, first.results()[0].value);
  EXPECT_EQ(of_first.OfLoopOperand(FusionOf(first), 0).base, first.results()[0].value);
  EXPECT_THAT(of_first.PermutationsOf(FusionOf(first)), ElementsAre(ElementsAre(0, 2, 1, 3)));

  const Graph second = WithFusion("%t: f16[2,4,3,8]", "%r = neg %t : f16[2,4,3,8]\n");
  const AttentionViews of_second(second);
  EXPECT_EQ(of_second.OfLoopOperand(FusionOf(second), 0).base, second.results()[0].value);
  EXPECT_THAT(of_second.PermutationsOf(FusionOf(second)), ElementsAre(ElementsAre(0, 1, 2, 3)));
}

// Three dimensions change places, so that a permutation differs from its inverse.
TEST(AttentionViews, AFusionReadsAResultThatIsWrittenInAnotherOrder) {
  const Graph graph = ParseForTest(
      "graph @f(%q: f16[2,3,4,8]) -> (z: f16[8,24], u: f16[2,3,4,8]) {\n%y, %l = attention %q, %q, %q {scale=1} : "
      "f16[2,3,4,8], f32[2,3,4]\n%t = transpose %y {permutation=[2, 0, 1, 3]} : f16[4,2,3,8]\n"
      "%u = fusion %y {body=graph @fused(%y: f16[2,3,4,8]) -> (u: f16[2,3,4,8]) {\n%u = neg %y : f16[2,3,4,8]\n"
      "return %u\n}} : f16[2,3,4,8]\n%z = reshape %t {shape=[8, 24]} : f16[8,24]\nreturn %z, %u\n}");
  const AttentionViews views(graph);
  EXPECT_EQ(views.OfLoopOperand(FusionOf(graph), 0).base, graph.results()[0].value);
  EXPECT_THAT(views.PermutationsOf(FusionOf(graph)), ElementsAre(ElementsAre(1, 2, 0, 3)));
}

// Rows of 48 elements are rows and a half of two heads' 32 in the transposed order.
TEST(AttentionViews, AFusionThatCannotReadThroughAMoveKeepsIt) {
  const Graph graph = WithFusion("%y: f16[2,3,4,8]",
                                 "%f = reshape %y {shape=[4, 48]} : f16[4,48]\n"
                                 "%m = reduce_max %f {dims=[1]} : f16[4]\n"
                                 "%b = broadcast %m {dims=[0], shape=[4, 48]} : f16[4,48]\n"
                                 "%r = sub %f, %b : f16[4,48]\n");
  const AttentionViews views(graph);
  EXPECT_EQ(views.OfResult(graph.nodes().front(), 0).base, FusionOf(graph).operand(0));
  EXPECT_TRUE(views.PermutationsOf(FusionOf(graph)).empty());
}

// %u could read %t where %z would be written, but %v cannot read %y there, so both read what they name.
TEST(AttentionViews, AFusionReadsThroughAMoveOnlyIfAllOthersCan) {
  const Graph graph = ParseForTest(
      "graph @f(%q: f16[2,3,4,8]) -> (z: f16[2,4,24], u: f16[2,4,3,8], v: f16[4,48]) {\n%y, %l = attention %q, %q, %q "
      "{scale=1} : f16[2,3,4,8], f32[2,3,4]\n%t = transpose %y {permutation=[0, 2, 1, 3]} : f16[2,4,3,8]\n"
      "%u = fusion %t {body=graph @fused(%t: f16[2,4,3,8]) -> (u: f16[2,4,3,8]) {\n%u = neg %t : f16[2,4,3,8]\n"
      "return %u\n}} : f16[2,4,3,8]\n%v = fusion %y {body=graph @fused(%y: f16[2,3,4,8]) -> (v: f16[4,48]) {\n"
      "%f = reshape %y {shape=[4, 48]} : f16[4,48]\n%m = reduce_max %f {dims=[1]} : f16[4]\n"
      "%b = broadcast %m {dims=[0], shape=[4, 48]} : f16[4,48]\n%v = sub %f, %b : f16[4,48]\nreturn %v\n}} : "
      "f16[4,48]\n%z = reshape %t {shape=[2, 4, 24]} : f16[2,4,24]\nreturn %z, %u, %v\n}");
  const AttentionViews views(graph);
  const Node &attention = graph.nodes().front(), &of_t = *graph.results()[1].value.node,
             &of_y = *graph.results()[2].value.node;
  EXPECT_EQ(views.OfResult(attention, 0).base, of_y.operand(0));
  for (const Node* fusion : {&of_t, &of_y}) {
    EXPECT_EQ(views.OfLoopOperand(*fusion, 0).base, fusion->operand(0));
    EXPECT_TRUE(views.PermutationsOf(*fusion).empty());
  }
}

// Attention could read the second third of %x where it is, but no loop reads a part of a value.
TEST(AttentionViews, AFusionDoesNotReadAPartOfAValue) {
  const Graph graph = ParseForTest(
      "graph @f(%x: f16[3,4,8]) -> (y: f16[4,8], u: f16[4,8]) {\n"
      "%s = slice %x {start=[1, 0, 0], limit=[2, 4, 8], stride=[1, 1, 1]} : f16[1,4,8]\n"
      "%q = reshape %s {shape=[4, 8]} : f16[4,8]\n%y, %l = attention %q, %q, %q {scale=1} : f16[4,8], f32[4]\n"
      "%u = fusion %q {body=graph @fused(%q: f16[4,8]) -> (u: f16[4,8]) {\n%u = neg %q : f16[4,8]\nreturn %u\n}} : "
      "f16[4,8]\nreturn %y, %u\n}");
  const AttentionViews views(graph);
  EXPECT_EQ(views.OfLoopOperand(FusionOf(graph), 0).base, FusionOf(graph).operand(0));
  EXPECT_EQ(views.OfOperand(*graph.results()[0].value.node, 0).base, FusionOf(graph).operand(0));
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
