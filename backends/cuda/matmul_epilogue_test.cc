// Products and the fusions after them, on the fake cuBLASLt: which fusions are computed with the product, and which are
// not.

#include <cmath>
#include <limits>

#include "core/interpreter.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "test/fake_cuda/run.h"

namespace lockstep::cuda {
namespace {

using testing::ElementsAre;
using testing::EndsWith;

// Runs the graph, compares its results with the interpreter's, and returns a description of each product call.
std::vector<std::string> CallsOf(const Graph& graph, const std::vector<Tensor>& inputs, double tolerance = 1e-5) {
  TheFakeCublasLt().TakeCalls();
  const auto found = RunOnFake(graph, inputs), expected = InterpretOneRank(graph, inputs);
  EXPECT_TRUE(found.ok()) << found.status();
  EXPECT_TRUE(expected.ok()) << expected.status();
  for (size_t i = 0; found.ok() && i < expected->size(); ++i) {
    for (int64_t at = 0; at < (*expected)[i].num_elements(); ++at) {
      const double f = (*found)[i].At(at), e = (*expected)[i].At(at);
      EXPECT_TRUE((std::isnan(f) && std::isnan(e)) || std::abs(f - e) <= tolerance * std::max(1.0, std::abs(e)))
          << "result " << i << " at " << at << " is " << f << ", expected " << e;
    }
  }
  return TheFakeCublasLt().TakeCalls();
}

std::vector<std::string> CallsOf(const std::string& text, double tolerance = 1e-5) {
  const Graph graph = ParseForTest(text);
  return CallsOf(graph, InputsForTest(graph), tolerance);
}

TEST(MatMulEpilogue, BiasAndRelu) {
  EXPECT_THAT(CallsOf(R"(graph @f(%x: f32[5,4], %w: f32[4,7], %b: f32[7]) -> (y: f32[5,7]) {
    %z = matmul %x, %w : f32[5,7]
    %c = broadcast %b {dims=[1], shape=[5, 7]} : f32[5,7]
    %s = add %c, %z : f32[5,7]
    %y = relu %s : f32[5,7]
    return %y
  })"),
              ElementsAre(EndsWith("epilogue 6")));
  EXPECT_THAT(CallsOf(R"(graph @f(%x: f16[5,4], %w: f16[7,4], %b: f16[7]) -> (y: f16[5,7]) {
    %z = matmul %x, %w {transpose_b=true} : f16[5,7]
    %c = broadcast %b {dims=[1], shape=[5, 7]} : f16[5,7]
    %y = add %z, %c : f16[5,7]
    return %y
  })",
                      4e-3),
              ElementsAre(EndsWith("epilogue 4")));
  EXPECT_THAT(CallsOf(R"(graph @f(%x: f32[5,4], %w: f32[4,7]) -> (y: f32[5,7]) {
    %z = matmul %x, %w : f32[5,7]
    %y = relu %z : f32[5,7]
    return %y
  })"),
              ElementsAre(EndsWith("epilogue 2")));
}

// All matrices of a batch share one bias, and so do rows of more than one dimension.
TEST(MatMulEpilogue, OfManyMatrices) {
  EXPECT_THAT(CallsOf(R"(graph @f(%x: f32[3,5,4], %w: f32[3,4,7], %b: f32[7]) -> (y: f32[3,5,7]) {
    %z = matmul %x, %w : f32[3,5,7]
    %c = broadcast %b {dims=[2], shape=[3, 5, 7]} : f32[3,5,7]
    %y = add %z, %c : f32[3,5,7]
    return %y
  })"),
              ElementsAre(EndsWith("3 matrices, epilogue 4")));
  EXPECT_THAT(CallsOf(R"(graph @f(%x: f32[3,5,4], %w: f32[4,7], %b: f32[7]) -> (y: f32[3,5,7]) {
    %z = matmul %x, %w : f32[3,5,7]
    %c = broadcast %b {dims=[2], shape=[3, 5, 7]} : f32[3,5,7]
    %y = add %z, %c : f32[3,5,7]
    return %y
  })"),
              ElementsAre(EndsWith("1 matrices, epilogue 4")));
}

// A fusion that is not exactly an epilogue stays a loop. Each line differs in one way.
TEST(MatMulEpilogue, WhatStaysALoop) {
  const auto text = [](const std::string& result, const std::string& nodes, const std::string& dtype = "f32") {
    std::string graph = "graph @f(%x: F[7,7], %w: F[7,7], %b: F[7], %o: F[7,7]) -> (" + result +
                        ") {\n%z = matmul %x, %w : F[7,7]\n" + nodes + "\n}";
    for (size_t at; (at = graph.find("F[")) != std::string::npos;) graph.replace(at, 1, dtype);
    return graph;
  };
  const std::string add = "%c = broadcast %b {dims=[1], shape=[7, 7]} : F[7,7]\n%s = add %z, %c : F[7,7]\n";
  const std::string graphs[] = {
      text("y: F[7,7], z: F[7,7]", add + "return %s, %z"),                               // the product is a result
      text("y: F[7,7], v: F[7,7]", add + "%v = matmul %z, %x : F[7,7]\nreturn %s, %v"),  // something else reads it
      text("y: F[7,7]", add + "%y = tanh %s : F[7,7]\nreturn %y"),
      text("y: F[7,7]", add + "%r = relu %s : F[7,7]\n%y = mul %r, %o : F[7,7]\nreturn %y"),
      text("y: F[7,7]", "%y = add %z, %o : F[7,7]\nreturn %y"),  // a matrix is not a bias
      text("y: F[7,7]", "%c = broadcast %b {dims=[0], shape=[7, 7]} : F[7,7]\n%s = add %z, %c : F[7,7]\nreturn %s"),
      text("y: F[7,7]", add + "return %s", "f64"),
      text("y: F[7,7], s: F[7,7]", add + "%y = relu %s : F[7,7]\nreturn %y, %s"),  // the argument of relu is a result
  };
  for (const std::string& graph : graphs) {
    for (const std::string& call : CallsOf(graph)) EXPECT_THAT(call, EndsWith("epilogue 1")) << graph;
  }
}

TEST(MatMulEpilogue, ANaNStaysOne) {
  const Graph graph = ParseForTest(R"(graph @f(%x: f32[5,4], %w: f32[4,7], %b: f32[7]) -> (y: f32[5,7]) {
    %z = matmul %x, %w : f32[5,7]
    %c = broadcast %b {dims=[1], shape=[5, 7]} : f32[5,7]
    %s = add %z, %c : f32[5,7]
    %y = relu %s : f32[5,7]
    return %y
  })");
  std::vector<Tensor> inputs = InputsForTest(graph);
  inputs[0].mutable_data<float>()[6] = std::numeric_limits<float>::quiet_NaN();
  EXPECT_THAT(CallsOf(graph, inputs), ElementsAre(EndsWith("epilogue 6")));
}

// The bias is read from where its own step wrote it, and the product's operands live until the position of the fusion.
TEST(MatMulEpilogue, OfAStepThatUpdatesItsBias) {
  EXPECT_THAT(
      CallsOf(R"(graph @step(%x: f32[16,20], %y: i64[16], state %w: f32[20,8], state %b: f32[8], state %v: f32[8,3])
      -> (loss: f32[], %w: f32[20,8], %b: f32[8], %v: f32[8,3]) {
    %z = matmul %x, %w : f32[16,8]
    %c = broadcast %b {dims=[1], shape=[16, 8]} : f32[16,8]
    %s = add %z, %c : f32[16,8]
    %h = relu %s : f32[16,8]
    %u = matmul %h, %v : f32[16,3]
    %loss, %du = softmax_cross_entropy %u, %y {scale=1/16} : f32[], f32[16,3]
    %dv = matmul %h, %du {transpose_a=true} : f32[8,3]
    %dh = matmul %du, %v {transpose_b=true} : f32[16,8]
    %p = sign %h : f32[16,8]
    %ds = mul %dh, %p : f32[16,8]
    %dw = matmul %x, %ds {transpose_a=true} : f32[20,8]
    %db = reduce_sum %ds {dims=[0]} : f32[8]
    %w.next = sgd %w, %dw {learning_rate=0.1} : f32[20,8]
    %b.next = sgd %b, %db {learning_rate=0.1} : f32[8]
    %v.next = sgd %v, %dv {learning_rate=0.1} : f32[8,3]
    return %loss, %w.next, %b.next, %v.next
  })"),
      testing::Contains(EndsWith("epilogue 6")).Times(1));
}

}  // namespace
}  // namespace lockstep::cuda
