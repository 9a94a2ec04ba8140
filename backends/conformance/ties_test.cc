// Checks which of several equal elements an op chooses, by expected values, because finite differences cannot show it.
// Both the interpreter and the compiled program are checked.

#include "backends/conformance/tested_backend.h"
#include "backends/run_in_process.h"
#include "core/interpreter.h"
#include "core/printer.h"
#include "gtest/gtest.h"
#include "passes/training/autodiff.h"

namespace lockstep {
namespace {

// Runs the graph, which has one or two f32 inputs, with the gradients of the result `loss` if `wrt` is not empty.
void ExpectResults(std::string_view text, const std::vector<std::string>& wrt, const std::vector<Tensor>& inputs,
                   const std::vector<Tensor>& expected) {
  absl::StatusOr<Graph> graph = ParseGraph(text);
  ASSERT_TRUE(graph.ok()) << graph.status();
  if (!wrt.empty()) {
    const auto differentiated = passes::Autodiff("loss", wrt).run(*graph);
    ASSERT_TRUE(differentiated.ok()) << differentiated.status();
  }
  const auto interpreted = InterpretOneRank(*graph, inputs);
  ASSERT_TRUE(interpreted.ok()) << interpreted.status();
  const auto compiled = RunInProcess(*graph, TestedBackend(), {inputs}, CompileOptions());
  ASSERT_TRUE(compiled.ok()) << compiled.status();
  ASSERT_EQ(interpreted->size(), expected.size());
  for (size_t i = 0; i < expected.size(); ++i) {
    EXPECT_EQ((*interpreted)[i], expected[i]) << graph->results()[i].name << ", interpreted:\n" << (*interpreted)[i];
    EXPECT_EQ((*compiled)[0][i], expected[i]) << graph->results()[i].name << ", compiled:\n" << (*compiled)[0][i];
  }
}

Tensor Row(std::vector<float> values) {
  const Shape shape = {static_cast<int64_t>(values.size())};
  return Tensor::Of<float>(shape, values);
}
Tensor Scalar(float value) { return Tensor::Of<float>({}, {value}); }

// Each operand gets half of the gradient.
TEST(Ties, MaxAndMin) {
  for (const std::string op : {"max", "min"}) {
    const bool is_max = op == "max";
    ExpectResults("graph @f(%x: f32[3], %y: f32[3]) -> (loss: f32[]) {\n %z = " + op +
                      " %x, %y : f32[3]\n %loss = reduce_sum %z {dims=[0]} : f32[]\n return %loss\n}",
                  {"x", "y"}, {Row({1, 5, 2}), Row({1, 4, 3})},
                  {Scalar(is_max ? 9.0F : 7.0F), is_max ? Row({0.5F, 1, 0}) : Row({0.5F, 0, 1}),
                   is_max ? Row({0.5F, 0, 1}) : Row({0.5F, 1, 0})});
  }
}

// Equal elements get equal shares of the gradient.
TEST(Ties, ReduceMaxAndMin) {
  ExpectResults("graph @f(%x: f32[4]) -> (loss: f32[]) {\n %loss = reduce_max %x {dims=[0]} : f32[]\n return %loss\n}",
                {"x"}, {Row({3, 1, 3, 2})}, {Scalar(3), Row({0.5F, 0, 0.5F, 0})});
  ExpectResults("graph @f(%x: f32[4]) -> (loss: f32[]) {\n %loss = reduce_min %x {dims=[0]} : f32[]\n return %loss\n}",
                {"x"}, {Row({1, 1, 3, 1})}, {Scalar(1), Row({1.0F / 3, 1.0F / 3, 0, 1.0F / 3})});
}

// The gradient goes to the first maximum of each window.
TEST(Ties, MaxPool) {
  constexpr char kPool[] = R"(
graph @f(%x: f32[1,1,4,4], %dy: f32[1,1,2,2]) -> (y: f32[1,1,2,2], dx: f32[1,1,4,4]) {
  %y = max_pool %x {dilation=[1,1], padding_high=[0,0], padding_low=[0,0], stride=[2,2], window=[2,2]} : f32[1,1,2,2]
  %dx = max_pool_grad %x, %dy {dilation=[1,1], padding_high=[0,0], padding_low=[0,0], stride=[2,2], window=[2,2]} : f32[1,1,4,4]
  return %y, %dx
})";
  const Tensor x = Tensor::Of<float>({1, 1, 4, 4}, {5, 5, 1, 2,  //
                                                    5, 5, 2, 2,  //
                                                    0, 0, 1, 3,  //
                                                    0, 0, 3, 1});
  const Tensor dy = Tensor::Of<float>({1, 1, 2, 2}, {1, 2, 3, 4});
  const Tensor y = Tensor::Of<float>({1, 1, 2, 2}, {5, 2, 0, 3});
  const Tensor dx = Tensor::Of<float>({1, 1, 4, 4}, {1, 0, 0, 2,  //
                                                     0, 0, 0, 0,  //
                                                     3, 0, 0, 4,  //
                                                     0, 0, 0, 0});
  ExpectResults(kPool, {}, {x, dy}, {y, dx});
}

// The first maximum is chosen.
TEST(Ties, ArgMax) {
  ExpectResults("graph @f(%x: f32[2,4]) -> (y: i64[2]) {\n %y = argmax %x {dim=1} : i64[2]\n return %y\n}", {},
                {Tensor::Of<float>({2, 4}, {1, 7, 7, 7, 2, 2, 0, 2})}, {Tensor::Of<int64_t>({2}, {1, 0})});
}

// The last one is chosen.
TEST(Ties, ArgsOfTheLast) {
  for (const std::string op : {"argmax", "argmin"}) {
    const Tensor x = Tensor::Of<float>({2, 4}, {1, 7, 1, 7, 2, 2, 2, 2});
    ExpectResults(
        "graph @f(%x: f32[2,4]) -> (y: i64[2]) {\n %y = " + op + " %x {dim=1, last=true} : i64[2]\n return %y\n}", {},
        {x}, {Tensor::Of<int64_t>({2}, {op == "argmax" ? 3 : 2, 3})});
  }
}

// Lower positions come first, and the gradients follow them.
TEST(Ties, TopK) {
  ExpectResults(
      "graph @f(%x: f32[5]) -> (v: f32[3], i: i64[3]) {\n"
      " %v, %i = top_k %x {dim=0, k=3} : f32[3], i64[3]\n return %v, %i\n}",
      {}, {Row({1, 3, 2, 3, 2})}, {Row({3, 3, 2}), Tensor::Of<int64_t>({3}, {1, 3, 2})});
}

std::string ScatterOf(const std::string& kind) {
  return "graph @f(%x: f32[3], %u: f32[4]) -> (loss: f32[]) {\n"
         " %i = constant {value=dense<i64[4]: 0, -2, 0, 1>} : i64[4]\n"
         " %y = scatter %x, %i, %u {dim=0, kind=" +
         kind +
         "} : f32[3]\n %w = constant {value=dense<f32[3]: 1.0, 2.0, 4.0>} : f32[3]\n %z = mul %y, %w : f32[3]\n"
         " %loss = reduce_sum %z {dims=[0]} : f32[]\n return %loss\n}";
}

// The last update of each position wins.
TEST(Ties, ScatterReplaces) {
  ExpectResults(ScatterOf("replace"), {"x", "u"}, {Row({9, 8, 7}), Row({1, 2, 3, 4})},
                {Scalar(3 + 2 * 4 + 4 * 7), Row({0, 0, 4}), Row({0, 0, 1, 2})});
}

// The updates and the previous element get equal shares of the gradient.
TEST(Ties, ScatterMaxAndMin) {
  ExpectResults(ScatterOf("max"), {"x", "u"}, {Row({3, 8, 7}), Row({3, 2, 3, 4})},
                {Scalar(3 + 2 * 8 + 4 * 7), Row({1.0F / 3, 2, 4}), Row({1.0F / 3, 0, 1.0F / 3, 0})});
  ExpectResults(ScatterOf("min"), {"x", "u"}, {Row({3, 8, 7}), Row({3, 2, 4, 2})},
                {Scalar(3 + 2 * 2 + 4 * 7), Row({0.5F, 0, 4}), Row({0.5F, 1, 0, 1})});
}

}  // namespace
}  // namespace lockstep
