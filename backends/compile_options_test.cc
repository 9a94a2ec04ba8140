// Tests CheckOptions: the mesh that it returns, exclusions that depend on the backend, and requirements on the graph.

#include "backends/compile_options.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "core/check.h"
#include "core/printer.h"
#include "passes/pass_table.h"

namespace lockstep {
namespace {

using testing::HasSubstr;

constexpr char kTwoLayers[] = R"(
graph @model(%x: f32[8,4] split(0), state %w: f32[4,4], state %table: f32[4,2]) -> (logits: f32[8,2]) {
  %h = matmul %x, %w : f32[8,4]
  %logits = matmul %h, %table : f32[8,2]
  return %logits
}
)";

Graph AfterPasses(const std::string& passes) {
  absl::StatusOr<Graph> graph = ParseGraph(kTwoLayers);
  LOCKSTEP_CHECK(graph.ok()) << graph.status();
  const absl::Status status = passes::RunPasses(*passes::PassesFromText(passes), *graph);
  LOCKSTEP_CHECK(status.ok()) << status;
  return *std::move(graph);
}

// A step that trains %w and not %table.
Graph TrainingStep() { return AfterPasses("train-step{optimizer=SGD, learning_rate=0.1, momentum=0.9, trained=w}"); }

CompileOptions OptionsOf(std::string_view strategy) {
  CompileOptions options;
  const absl::StatusOr<Strategy> parsed = Strategy::Parse(strategy);
  LOCKSTEP_CHECK(parsed.ok()) << parsed.status();
  static_cast<Strategy&>(options) = *parsed;
  options.rank = 0;
  return options;
}

std::string ErrorOfOptions(const Graph& graph, std::string_view strategy, std::string_view backend = "cpu") {
  return std::string(CheckOptions(graph, OptionsOf(strategy), backend).status().message());
}

TEST(CheckOptions, ReturnsTheMeshOfTheOptionsOrElseOfTheGraph) {
  const Graph placed = AfterPasses("distribute{data=2}");
  EXPECT_EQ(*CheckOptions(TrainingStep(), OptionsOf("mesh={data=4}"), "cpu"), Mesh({{"data", 4}}));
  EXPECT_EQ(*CheckOptions(TrainingStep(), OptionsOf(""), "cpu"), Mesh());
  EXPECT_EQ(*CheckOptions(placed, OptionsOf(""), "cpu"), Mesh({{"data", 2}}));
  EXPECT_EQ(*CheckOptions(placed, OptionsOf("mesh={data=2}"), "cpu"), Mesh({{"data", 2}}));
  EXPECT_EQ(ErrorOfOptions(placed, "mesh={data=4}"),
            "graph @model is distributed over the mesh {data=2}, but is to be compiled for {data=4}");
}

TEST(CheckOptions, NamesBothOfTwoOptionsWithTheReason) {
  EXPECT_EQ(ErrorOfOptions(TrainingStep(), "optimize=false,factors=0.5"),
            "compile: optimize=False does not go with factors: it turns this optimization off");
  EXPECT_EQ(ErrorOfOptions(TrainingStep(), "optimize=false,factors=false"), "");
  EXPECT_THAT(ErrorOfOptions(TrainingStep(), "wire=int8,mesh={data=1,stage=2}"),
              HasSubstr("wire=\"int8\" does not go with stages, mesh={data=1,stage=2}: int8 keeps rounding errors"));
}

TEST(CheckOptions, NamesTheBackendThatAnOptionExcludes) {
  for (const std::string one : {"strategy=parameter_server", "shared_weights=true", "buckets={}", "mesh={stage=2}"}) {
    EXPECT_EQ(ErrorOfOptions(TrainingStep(), one), "") << one;
    EXPECT_THAT(ErrorOfOptions(TrainingStep(), one, "cuda"), HasSubstr("does not go with backend=\"cuda\": ")) << one;
  }
}

TEST(CheckOptions, ServersNeedWholeWeightsOfAGraphThatIsNotDistributed) {
  const std::string servers = "strategy=parameter_server,mesh={data=2}";
  for (const std::string name : {"w", "[a-w]"}) {
    EXPECT_EQ(ErrorOfOptions(TrainingStep(), servers + ",split={" + name + "={data=0}}"),
              "compile: strategy=\"parameter_server\" does not go with split or placements of %w: servers keep whole "
              "variables");
  }
  EXPECT_EQ(ErrorOfOptions(TrainingStep(), servers + ",split={w={},x={data=0},table={data=0}}"),
            "");  // servers have none of these
  EXPECT_THAT(ErrorOfOptions(AfterPasses("distribute{data=2}"), servers),
              HasSubstr("it is already distributed, over the mesh"));
  EXPECT_THAT(ErrorOfOptions(AfterPasses("simplify"), servers), HasSubstr("it has no optimizer"));
  EXPECT_THAT(ErrorOfOptions(TrainingStep(), "strategy=parameter_server,mesh={data=2,model=2}"),
              HasSubstr("has ranks along axis model, but servers take gradients only along data"));
}

}  // namespace
}  // namespace lockstep
