// Compares the kernels of kernels/ on the fake driver with the interpreter, bit by bit, and checks their PTX.

#include <cstdio>
#include <cstdlib>
#include <filesystem>
#include <fstream>
#include <regex>
#include <set>

#include "backends/codegen/widen_ptx.h"
#include "backends/cuda/cuda_backend.h"
#include "backends/cuda/kernels/kernel_text.h"
#include "backends/cuda/kernels/pooling.h"
#include "backends/run_in_process.h"
#include "core/interpreter.h"
#include "core/printer.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "runtime/comm/staged.h"
#include "runtime/cuda/device.h"
#include "test/fake_cuda/grid_images.h"
#include "test/fake_cuda/kernel_texts.h"
#include "test/fake_cuda/load.h"
#include "test/op_cases/op_case_graph.h"
#include "test/op_cases/special_values.h"

namespace lockstep {
namespace {

using ::lockstep::loop_test::Order;
using ::testing::HasSubstr;
using ::testing::IsEmpty;

const std::set<std::string> kOps = {"max_pool",
                                    "max_pool_grad",
                                    "avg_pool",
                                    "avg_pool_grad",
                                    "gather",
                                    "scatter_sum",
                                    "scatter",
                                    "top_k",
                                    "argmax",
                                    "argmin",
                                    "cumulative_sum",
                                    "cumulative_prod",
                                    "overlap_add",
                                    "scan",
                                    "concat",
                                    "pad",
                                    "shard",
                                    "axis_index",
                                    "all_gather",
                                    "reduce_scatter",
                                    "all_to_all",
                                    "collective_gather",
                                    "collective_scatter"};

using RankTensors = std::vector<std::vector<Tensor>>;

// Runs each rank on its own fake GPU.
absl::StatusOr<RankTensors> RunOnFake(const Graph& graph, const RankTensors& inputs, Order order) {
  const auto ranks = static_cast<int>(inputs.size());
  const cuda::LoadedFakeDriver fake = cuda::LoadFakeDriver({.gpus = ranks});
  const auto backend = CreateCudaBackend(cuda::FakeGridImages(), cuda::FakeKernelTexts(order));
  CompileOptions options;
  options.isa = "h200";
  options.replicated = true;
  RankTensors results(inputs.size());
  const absl::Status status = ForEachRank(ranks, [&](Communicator& host) -> absl::Status {
    const auto rank = static_cast<size_t>(host.rank());
    ASSIGN_OR_RETURN(const auto device, cuda::CudaDevice::Create(fake.api, host.rank()));
    StagedCommunicator communicator(host, *device);
    ASSIGN_OR_RETURN(Executable executable, Compile(graph.Clone(), *backend, options));
    ASSIGN_OR_RETURN(const auto executor, Executor::Load(std::move(executable), &communicator, device.get()));
    ASSIGN_OR_RETURN(results[rank], RunOnce(*executor, graph, inputs[rank]));
    return absl::OkStatus();
  });
  EXPECT_THAT(fake.driver.misuse(), IsEmpty());
  EXPECT_THAT(fake.driver.leaks(), IsEmpty());
  if (!status.ok()) return status;
  return results;
}

// Returns the first difference, or an empty text. All NaN are equal.
std::string Difference(const Tensor& actual, const Tensor& expected) {
  if (actual.type() != expected.type()) return actual.type().ToString();
  for (int64_t i = 0; i < expected.num_elements(); ++i) {
    const double a = actual.At(i), e = expected.At(i);
    if (a == e || (a != a && e != e)) continue;
    return "element " + std::to_string(i) + " is " + DoubleToString(a) + ", expected " + DoubleToString(e);
  }
  return IsFloat(expected.dtype()) || actual == expected ? "" : "integers differ that are equal as doubles";
}

void ExpectSame(const Graph& graph, const RankTensors& inputs, Order order) {
  const auto expected = Interpret(graph, inputs), actual = RunOnFake(graph, inputs, order);
  ASSERT_TRUE(expected.ok()) << expected.status();
  ASSERT_TRUE(actual.ok()) << actual.status();
  ASSERT_EQ(actual->size(), expected->size());
  for (size_t rank = 0; rank < expected->size(); ++rank) {
    for (size_t i = 0; i < (*expected)[rank].size(); ++i)
      EXPECT_EQ(Difference((*actual)[rank][i], (*expected)[rank][i]), "") << "result " << i << " of rank " << rank;
  }
}

// True for a loop whose body has functions of f64, which GPUs do not have.
bool HasHeavyBody(const OpCase& row) {
  const std::string text = row.ToString();
  return row.op == "scan" && (text.find("tanh") != std::string::npos || text.find(" sin ") != std::string::npos);
}

std::vector<OpCase> Rows() {
  std::vector<OpCase> rows;
  for (const OpCase& row : AcceptedOpCases()) {
    if (kOps.contains(row.op) && !HasHeavyBody(row)) rows.push_back(row);
  }
  return rows;
}

class Kernels : public ::testing::TestWithParam<OpCase> {};

TEST_P(Kernels, ComputeWhatTheInterpreterDoes) {
  const auto graph = CaseGraph(GetParam());
  ASSERT_TRUE(graph.ok()) << graph.status();
  for (Order order : {Order::kForwards, Order::kBackwards, Order::kMixed})
    ExpectSame(*graph, RankInputs(GetParam()), order);
}

using KernelsOfSpecialValues = Kernels;

TEST_P(KernelsOfSpecialValues, AreThoseOfTheInterpreter) {
  const auto graph = CaseGraph(GetParam());
  ASSERT_TRUE(graph.ok()) << graph.status();
  for (const SpecialInputs& special : SpecialRankInputs(GetParam())) ExpectSame(*graph, special.inputs, Order::kMixed);
}

// Returns the cases of ops that are decomposed into ops that must have kernels. Cases with f64 exponentials are
// excluded, because loops on a GPU cannot compute them.
std::vector<OpCase> DecomposedRows() {
  std::vector<OpCase> rows;
  for (const OpCase& row : AcceptedOpCases()) {
    if (row.op.starts_with("attention") && row.operands[0].type.dtype != DType::kF64) rows.push_back(row);
  }
  return rows;
}

class DecomposedOps : public ::testing::TestWithParam<OpCase> {};

TEST_P(DecomposedOps, AgreeWithTheInterpreter) {
  const auto graph = CaseGraph(GetParam());
  ASSERT_TRUE(graph.ok()) << graph.status();
  const RankTensors inputs = RankInputs(GetParam());
  const auto expected = Interpret(*graph, inputs), actual = RunOnFake(*graph, inputs, Order::kMixed);
  ASSERT_TRUE(expected.ok()) << expected.status();
  ASSERT_TRUE(actual.ok()) << actual.status();
  const bool is_half = SizeOf(GetParam().operands[0].type.dtype) == 2;
  for (size_t i = 0; i < (*expected)[0].size(); ++i)
    EXPECT_LE(RelativeDifference((*actual)[0][i], (*expected)[0][i]), is_half ? 2e-2 : 1e-5) << "result " << i;
}

std::string NameOf(const ::testing::TestParamInfo<OpCase>& info) {
  return std::to_string(info.index) + "_" + info.param.op;
}

INSTANTIATE_TEST_SUITE_P(OpCases, Kernels, ::testing::ValuesIn(Rows()), NameOf);

INSTANTIATE_TEST_SUITE_P(OpCases, KernelsOfSpecialValues, ::testing::ValuesIn(SomeOf(Rows())), NameOf);

INSTANTIATE_TEST_SUITE_P(OpCases, DecomposedOps, ::testing::ValuesIn(DecomposedRows()), NameOf);

TEST(HeavyBodies, OfF32AgreeWithTheInterpreter) {
  int rows = 0;
  for (const OpCase& row : AcceptedOpCases()) {
    if (!HasHeavyBody(row)) continue;
    SCOPED_TRACE(row.ToString());
    const auto graph = CaseGraph(row);
    ASSERT_TRUE(graph.ok()) << graph.status();
    const auto narrow = ParseGraph(std::regex_replace(graph->ToString(), std::regex("f64"), "f32"));
    ASSERT_TRUE(narrow.ok()) << narrow.status();
    RankTensors inputs = RankInputs(row);
    for (Tensor& input : inputs[0]) {
      if (IsFloat(input.dtype())) input = input.Converted(DType::kF32);
    }
    const auto expected = Interpret(*narrow, inputs), actual = RunOnFake(*narrow, inputs, Order::kMixed);
    ASSERT_TRUE(expected.ok()) << expected.status();
    ASSERT_TRUE(actual.ok()) << actual.status();
    for (size_t i = 0; i < (*expected)[0].size(); ++i)
      EXPECT_LE(RelativeDifference((*actual)[0][i], (*expected)[0][i]), 1e-5) << "result " << i;
    ++rows;
  }
  EXPECT_GE(rows, 6);
}

TEST(KernelRows, CoverEveryOp) {
  std::set<std::string> found;
  for (const OpCase& row : Rows()) found.insert(row.op);
  EXPECT_EQ(found, kOps);
}

// --- Cases that the table's rows are too small for -------------------------------------------------------------------

Tensor Indices(Shape shape, int64_t low, int64_t high) {
  std::vector<int64_t> values;
  for (int64_t i = 0; i < shape.num_elements(); ++i) values.push_back(low + i * 7919 % (high - low));
  return Tensor::Of<int64_t>(shape, values);
}

// Returns a tensor with few different values, so that the order of equal ones matters.
Tensor Coarse(Shape shape, DType dtype) {
  std::vector<double> values;
  for (int64_t i = 0; i < shape.num_elements(); ++i) values.push_back(static_cast<double>(i * 7919 % 97) / 4 - 10);
  return Tensor::Of<double>(shape, values).Converted(dtype);
}

void ExpectSameCase(const OpCase& row) {
  const auto graph = CaseGraph(row);
  ASSERT_TRUE(graph.ok()) << graph.status();
  ExpectSame(*graph, RankInputs(row), Order::kMixed);
}

TEST(LargeProblems, SortsOfManyTiles) {
  for (DType dtype : {DType::kF32, DType::kI64, DType::kBF16}) {
    ExpectSameCase(Case("top_k", {Coarse({2, 5000}, dtype)}, {{"dim", int64_t{1}}, {"k", int64_t{5000}}}));
    ExpectSameCase(
        Case("top_k", {Coarse({2100, 3}, dtype)}, {{"dim", int64_t{0}}, {"k", int64_t{7}}, {"largest", false}}));
  }
}

TEST(LargeProblems, ScattersOfManyUpdates) {
  for (DType dtype : {DType::kF32, DType::kF16, DType::kI32}) {
    ExpectSameCase(Case("scatter_sum", {Indices({2500}, -40, 40), Coarse({2500, 3}, dtype)},
                        {{"dim", int64_t{0}}, {"size", int64_t{40}}}));
    ExpectSameCase(Case("scatter", {Coarse({2, 40, 3}, dtype), Indices({2, 1100}, 0, 40), Coarse({2, 1100, 3}, dtype)},
                        {{"dim", int64_t{1}}, {"batch_dims", int64_t{1}}, {"kind", std::string("replace")}}));
  }
}

using Ints = std::vector<int64_t>;

TEST(Divisors, DivideAllNumbersBelowTheirLimit) {
  constexpr int64_t kLimit = int64_t{1} << 31;
  for (int64_t divisor :
       {1L, 2L, 3L, 5L, 7L, 56L, 112L, 641L, 65537L, 1L << 30, (1L << 30) + 1, kLimit - 2, kLimit - 1}) {
    for (int64_t quotient :
         {int64_t{0}, int64_t{1}, int64_t{12345}, (kLimit - 1) / divisor / 2, (kLimit - 1) / divisor}) {
      for (int64_t rest : {int64_t{0}, divisor / 2, divisor - 1}) {
        const int64_t number = quotient * divisor + rest;
        if (number >= kLimit) continue;
        EXPECT_EQ(static_cast<uint32_t>(number) / cuda::Divisor(divisor), quotient) << number << " / " << divisor;
      }
    }
  }
}

// Pools over channels that do not fill the last group, over windows with more taps than a byte can number, and over
// three dimensions with dilations.
TEST(LargeProblems, Pools) {
  struct Windows {
    Shape x, y;
    Ints window, stride, padding, dilation;
  };
  const Windows all[] = {{{2, 11, 13, 9}, {2, 11, 7, 5}, {3, 3}, {2, 2}, {1, 1}, {1, 1}},
                         {{1, 3, 20, 18}, {1, 3, 4, 2}, {17, 17}, {1, 1}, {0, 0}, {1, 1}},
                         {{2, 5, 5, 6, 7}, {2, 5, 5, 1, 4}, {2, 3, 2}, {1, 2, 3}, {1, 0, 3}, {2, 2, 3}}};
  for (DType dtype : {DType::kF64, DType::kF32, DType::kF16, DType::kBF16}) {
    for (const Windows& w : all) {
      AttributeMap attributes = {
          {"window", w.window}, {"stride", w.stride}, {"padding_low", w.padding}, {"padding_high", w.padding}};
      const bool dilates = w.dilation != Ints(w.window.size(), 1);
      if (!dilates) {
        attributes.emplace("include_padding", false);
        ExpectSameCase(Case("avg_pool", {Coarse(w.x, dtype)}, attributes));
        attributes.emplace("input_shape", w.x.dims());
        ExpectSameCase(Case("avg_pool_grad", {Coarse(w.y, dtype)}, attributes));
        attributes.erase("include_padding");
        attributes.erase("input_shape");
      }
      attributes.emplace("dilation", w.dilation);
      ExpectSameCase(Case("max_pool", {Coarse(w.x, dtype)}, attributes));
      ExpectSameCase(Case("max_pool_grad", {Coarse(w.x, dtype), Coarse(w.y, dtype)}, attributes));
    }
  }
}

// Coarse numbers repeat, so that a window's first maximum is near its begin. Here it is near its end.
TEST(LargeProblems, PoolsWhoseMaximaComeLate) {
  const Shape x = {1, 3, 20, 18}, y = {1, 3, 4, 2};
  std::vector<double> rising(static_cast<size_t>(x.num_elements()));
  for (size_t i = 0; i < rising.size(); ++i) rising[i] = static_cast<double>(i / 8);
  const AttributeMap attributes = {{"window", Ints{17, 17}},
                                   {"stride", Ints{1, 1}},
                                   {"padding_low", Ints{0, 0}},
                                   {"padding_high", Ints{0, 0}},
                                   {"dilation", Ints{1, 1}}};
  for (DType dtype : {DType::kF32, DType::kBF16}) {
    const Tensor of_x = Tensor::Of<double>(x, rising).Converted(dtype);
    ExpectSameCase(Case("max_pool_grad", {of_x, Coarse(y, dtype)}, attributes));
  }
}

// Pools whose operands and results are channels-last or row-major, each for itself: %a, %b and %d are channels-last,
// as they are a convolution's, and %y, because one reads it.
TEST(LargeProblems, PoolsInAllLayouts) {
  const std::string conv = ", %w {dilation=[1,1], groups=1, padding_high=[0,0], padding_low=[0,0], stride=[1,1]} : ";
  const std::string pool = " {padding_high=[1,1], padding_low=[1,1], stride=[2,2], window=[3,3]";
  const std::string max = pool + ", dilation=[1,1]} : ", avg = pool + ", include_padding=false";
  const std::string x = "bf16[2,16,9,11]", y = "bf16[2,16,5,6]", shape = ", input_shape=[2,16,9,11]} : ";
  std::string results, types;
  std::string text = "  %a = convolution %x" + conv + x + "\n  %d = convolution %dy" + conv + y + "\n";
  const auto add = [&](const std::string& name, const std::string& op, const std::string& type, bool returns) {
    text += "  %" + name + " = " + op + type + "\n";
    if (!returns) return;
    results += (results.empty() ? "%" : ", %") + name;
    types += (types.empty() ? "" : ", ") + name + ": " + type;
  };
  for (const std::string from : {"x", "a"}) {
    add("m" + from, "max_pool %" + from + max, y, true);
    add("n" + from, "avg_pool %" + from + avg + "} : ", y, true);
    // Without a second reader that needs rows.
    add("p" + from, "max_pool %" + from + pool + ", dilation=[1,2]} : ", "bf16[2,16,5,5]", false);
    add("q" + from, "convolution %p" + from + conv, "bf16[2,16,5,5]", true);
    for (const std::string grad : {"dy", "d"})
      add("g" + from + grad, "max_pool_grad %" + from + ", %" + grad + max, x, true);
  }
  for (const std::string grad : {"dy", "d"}) {
    add("h" + grad, "avg_pool_grad %" + grad + avg + shape, x, true);
    add("i" + grad, "avg_pool_grad %" + grad + pool + ", include_padding=true" + shape, x, false);
    add("j" + grad, "convolution %i" + grad + conv, x, true);
  }
  const auto graph = ParseGraph("graph @f(%x: " + x + ", %dy: " + y + ", %w: bf16[16,16,1,1]) -> (" + types + ") {\n" +
                                text + "  return " + results + "\n}");
  ASSERT_TRUE(graph.ok()) << graph.status();
  std::vector<double> identity(256);
  for (size_t i = 0; i < 16; ++i) identity[17 * i] = 1;
  ExpectSame(*graph,
             {{Coarse({2, 16, 9, 11}, DType::kBF16), Coarse({2, 16, 5, 6}, DType::kBF16),
               Tensor::Of<double>({16, 16, 1, 1}, identity).Converted(DType::kBF16)}},
             Order::kMixed);
}

// Rows of whole packs of 16 bytes, and rows that are longer and no multiple.
TEST(LargeProblems, ScattersOfPacks) {
  for (DType dtype : {DType::kF64, DType::kF32, DType::kF16, DType::kBF16, DType::kI64, DType::kU8}) {
    for (int64_t inner : {32, 17}) {
      for (int64_t rows : {40, 3}) {  // with a few updates, and with many
        ExpectSameCase(Case("scatter_sum", {Indices({150}, -rows, rows), Coarse({150, inner}, dtype)},
                            {{"dim", int64_t{0}}, {"size", rows}}));
      }
      // The last of 48 updates stays.
      ExpectSameCase(Case("scatter", {Coarse({3, inner}, dtype), Indices({144}, -3, 3), Coarse({144, inner}, dtype)},
                          {{"dim", int64_t{0}}, {"kind", std::string("replace")}}));
      for (const char* kind : {"min", "max", "prod"}) {
        ExpectSameCase(Case("scatter",
                            {Coarse({2, 9, inner}, dtype), Indices({2, 20}, -9, 9), Coarse({2, 20, inner}, dtype)},
                            {{"dim", int64_t{1}}, {"batch_dims", int64_t{1}}, {"kind", std::string(kind)}}));
      }
    }
  }
}

TEST(LargeProblems, LongLines) {
  // Integers, whose sums are exact in any order.
  const Tensor x = Coarse({2, 3000}, DType::kI32), y = x.Converted(DType::kF32);
  for (const Tensor& operand : {x, y}) {
    for (bool flag : {false, true}) {
      ExpectSameCase(Case("cumulative_sum", {operand}, {{"dim", int64_t{1}}, {"exclusive", flag}, {"reverse", !flag}}));
    }
    ExpectSameCase(Case("argmax", {operand}, {{"dim", int64_t{1}}}));
    ExpectSameCase(Case("argmin", {operand}, {{"dim", int64_t{1}}, {"last", true}}));
  }
}

// --- Indices out of range --------------------------------------------------------------------------------------------

// Returns the error of a run in which dimensions of 4 are indexed with 0, 4 and -4.
std::string ErrorOf(const std::string& text) {
  const Graph graph = ParseGraph(text).value();
  std::vector<Tensor> inputs;
  for (const Input& input : graph.inputs()) {
    const TensorType& type = input.value.type();
    inputs.push_back(IsFloat(type.dtype) ? Coarse(type.shape, type.dtype)
                                         : Tensor::Of<int64_t>({3}, {0, 4, -4}).Converted(type.dtype));
  }
  return std::string(RunOnFake(graph, {inputs}, Order::kMixed).status().message());
}

TEST(IndicesOutOfRange, AreErrorsThatNameTheOp) {
  EXPECT_THAT(ErrorOf(R"(graph @f(%x: f32[2,4,5], %i: i64[3]) -> (y: f32[2,3,5]) {
    %y = gather %x, %i {dim=1} : f32[2,3,5] @"onnx:/Gather"
    return %y
  })"),
              HasSubstr("gather (C6): an index is outside [-4, 4), the extent of dimension 1, at onnx:/Gather"));
  EXPECT_THAT(ErrorOf(R"(graph @f(%i: i32[3], %u: f32[3,5]) -> (y: f32[4,5]) {
    %y = scatter_sum %i, %u {dim=0, size=4} : f32[4,5]
    return %y
  })"),
              HasSubstr("scatter_sum (C6): an index is outside [-4, 4), the extent of dimension 0"));
  EXPECT_THAT(ErrorOf(R"(graph @f(%x: f32[4,5], %i: i64[3], %u: f32[3,5]) -> (y: f32[4,5]) {
    %y = scatter %x, %i, %u {dim=0, kind="max"} : f32[4,5]
    return %y
  })"),
              HasSubstr("scatter (C8): an index is outside [-4, 4), the extent of dimension 0"));
}

// --- PTX -------------------------------------------------------------------------------------------------------------

class Ptx : public ::testing::TestWithParam<const char*> {};

TEST_P(Ptx, IsCompleteAndKeepsToRegisters) {
  const std::string ptx(cuda::KernelText(GetParam()));
  EXPECT_THAT(ptx, HasSubstr(".target sm_80"));
  EXPECT_THAT(ptx, HasSubstr(".visible .entry"));
  EXPECT_THAT(ptx, Not(HasSubstr(".extern .func")));
  EXPECT_THAT(ptx, Not(HasSubstr(".local")));
  EXPECT_THAT(ptx, HasSubstr(".version 7.0\n")) << "whatever CUDA is installed where it is compiled";
  // A product and the sum with it are each rounded, as on the host, unless a kernel asks for MultiplyAdd.
  if (!std::string(GetParam()).starts_with("attention")) {
    EXPECT_THAT(ptx, Not(HasSubstr("fma.")));
  }
  EXPECT_EQ(WidenPtx(ptx), ptx) << "has what NVIDIA's assembler gets wrong";
  if (std::system("ptxas --version > /dev/null 2>&1") != 0) GTEST_SKIP() << "ptxas is not installed";
  for (const char* architecture : {"sm_80", "sm_90"}) {
    const std::string file = ::testing::TempDir() + "/" + GetParam() + ".ptx";
    std::ofstream(file) << ptx;
    const std::string command =
        std::string("ptxas --warning-as-error --output-file /dev/null -arch=") + architecture + " " + file;
    EXPECT_EQ(std::system(command.c_str()), 0);
  }
}

INSTANTIATE_TEST_SUITE_P(Families, Ptx,
                         ::testing::Values("attention_bf16", "attention_f16", "attention_f32", "copy", "cumulative",
                                           "indexing", "order", "overlap", "pooling", "sum"),
                         [](const ::testing::TestParamInfo<const char*>& info) { return std::string(info.param); });

TEST(PtxOfNoFamily, IsEmpty) { EXPECT_EQ(cuda::KernelText("unheard"), ""); }

}  // namespace
}  // namespace lockstep
