#include "verify/compare_programs.h"

#include "core/printer.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "passes/pipeline.h"

namespace lockstep::verify {
namespace {

using testing::HasSubstr;

constexpr char kStep[] = R"(
graph @step(%x: f32[8,6] split(0), %dz: f32[8,4] split(0), state %w: f32[6,4]) -> (%w: f32[6,4]) {
  %dw = matmul %x, %dz {transpose_a=true} : f32[6,4]
  %w1 = sgd %w, %dw {learning_rate=0.1} : f32[6,4]
  return %w1
}
)";

TEST(RunPassesChecked, AcceptsAPipeline) {
  const auto graph = ParseGraph(kStep);
  ASSERT_TRUE(graph.ok()) << graph.status();
  for (int64_t ranks : {1, 2, 4, 8}) {
    passes::PipelineOptions options;
    options.ranks = options.mesh = Mesh({{"data", ranks}});
    options.supports = [](const Node& node) { return !node.op().has_trait(kOptimizer); };
    Graph copy = graph->Clone();
    EXPECT_TRUE(RunPassesChecked(passes::MakePipeline(options), copy).ok());
  }
}

TEST(Reference, NamesTheFirstValueThatDiffers) {
  const auto graph = ParseGraph(kStep);
  ASSERT_TRUE(graph.ok()) << graph.status();
  auto reference = Reference::Of(*graph);
  ASSERT_TRUE(reference.ok()) << reference.status();
  const auto wrong = ParseGraph(R"(
mesh {data=4}
graph @step(%x: f32[8,6] split(0), %dz: f32[8,4] split(0), state %w: f32[6,4]) -> (%w: f32[6,4]) {
  %dw = matmul %x, %dz {transpose_a=true} : f32[6,4] local
  %dw.1 = all_reduce %dw {axis=data, kind=mean} : f32[6,4]
  %w1 = sgd %w, %dw.1 {learning_rate=0.1} : f32[6,4]
  return %w1
}
)");
  ASSERT_TRUE(wrong.ok()) << wrong.status();
  EXPECT_THAT(reference->Check(*wrong).message(), HasSubstr("%w1"));
}

}  // namespace
}  // namespace lockstep::verify
