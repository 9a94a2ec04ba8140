// Whole training steps against the interpreter, on one rank and on several in this process, with gradients in buckets.

#include "backends/cpu/compare_with_interpreter.h"
#include "backends/run_in_process.h"
#include "core/printer.h"
#include "gtest/gtest.h"
#include "passes/distribute/distribute.h"

namespace lockstep {
namespace {

constexpr char kMlpStep[] = R"(
graph @mlp(%x: f32[8,12] split(0), %y: i64[8] split(0), state %w: f32[12,5], state %b: f32[5], state %v: f32[12,5]) -> (loss: f32[], %w: f32[12,5], %b: f32[5], %v: f32[12,5]) {
  %z = matmul %x, %w : f32[8,5]
  %bb = broadcast %b {dims=[1], shape=[8,5]} : f32[8,5]
  %zb = add %z, %bb : f32[8,5]
  %h = tanh %zb : f32[8,5]
  %loss, %dh = softmax_cross_entropy %h, %y {scale=0.125} : f32[], f32[8,5]
  %hh = mul %h, %h : f32[8,5]
  %one = constant {value=dense<f32[]: 1.0>} : f32[]
  %ones = broadcast %one {dims=[], shape=[8,5]} : f32[8,5]
  %d = sub %ones, %hh : f32[8,5]
  %dz = mul %dh, %d : f32[8,5]
  %dw = matmul %x, %dz {transpose_a=true} : f32[12,5]
  %db = reduce_sum %dz {dims=[0]} : f32[5]
  %w1, %v1 = sgd_momentum %w, %v, %dw {learning_rate=0.1, momentum=0.9} : f32[12,5], f32[12,5]
  %b1 = sgd %b, %db {learning_rate=0.1} : f32[5]
  return %loss, %w1, %b1, %v1
}
)";

Graph Parse(std::string_view text) {
  auto graph = ParseGraph(text);
  LOCKSTEP_CHECK(graph.ok()) << graph.status();
  return std::move(*graph);
}

TEST(TrainingStep, MlpOnOneRank) {
  const Graph graph = Parse(kMlpStep);
  for (int threads : {1, 2}) {
    CompileOptions options;
    options.threads = threads;
    ExpectAgreesWithInterpreter(graph, RandomInputs(graph), 1e-5, options);
  }
}

TEST(TrainingStep, MlpOnRanks) {
  for (int64_t ranks : {2, 4}) {
    const auto graph = passes::DistributeGraph(Parse(kMlpStep), Mesh({{"data", ranks}}));
    ASSERT_TRUE(graph.ok()) << graph.status();
    CompileOptions options;
    options.mesh = graph->mesh();
    ExpectAgreesWithInterpreter(*graph, RandomInputs(*graph), 1e-5, options);
  }
}

}  // namespace
}  // namespace lockstep
