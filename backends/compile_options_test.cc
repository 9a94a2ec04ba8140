// Tests CheckOptions: options that exclude each other, the mesh that it returns, and requirements on the graph.

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

// Returns the error about options that exclude each other, without the reason; "" if there is none.
std::string ExclusionIn(std::string_view text, std::string_view backend) {
  const std::string message = ErrorOfOptions(Graph("empty"), text, backend);
  const bool is_exclusion = message.find(" does not go with ") != message.npos;
  return is_exclusion ? message.substr(0, message.find(": ", sizeof("compile: "))) : "";
}

TEST(CheckOptions, SharesAreThoseOfTheBatch) {
  const Graph step = AfterPasses("train-step{optimizer=SGD, learning_rate=0.1, uneven=true}");
  const auto error_of = [&](const std::string& shares) {
    return ErrorOfOptions(step, "mesh={data=2},shares=" + shares);
  };
  EXPECT_EQ(error_of("5|3"), "");
  EXPECT_EQ(error_of("5|2|1"), "compile: shares=5|2|1 has the shares of 3 ranks, but there are 2 along \"data\"");
  EXPECT_EQ(error_of("8|0"), "compile: shares=8|0: 0 is not a share of 1 to 8 rows");
  EXPECT_EQ(error_of("5|4"), "compile: shares=5|4 is 9 rows, but the batch has 8");
  EXPECT_EQ(error_of("6|2,virtual_ranks=4"), "");
  EXPECT_THAT(error_of("5|3,virtual_ranks=4"), HasSubstr("5 rows are no whole number of virtual ranks"));
  EXPECT_THAT(ErrorOfOptions(TrainingStep(), "mesh={data=2},shares=5|3"), HasSubstr("needs full batches"));
  EXPECT_THAT(ErrorOfOptions(AfterPasses("distribute{data=2}"), "shares=5|3"), HasSubstr("already distributed"));
}

TEST(CheckOptions, NamesBothOptionsThatExcludeEachOther) {
  const std::string servers = "strategy=parameter_server", asynchronous = servers + ",asynchronous=true";
  const struct {
    std::string text, one, other;
    std::string backend = "cpu";
  } exclusions[] = {
      {servers, "strategy=\"parameter_server\"", "backend=\"cuda\"", "cuda"},
      {servers + ",mesh={stage=2}", "strategy=\"parameter_server\"", "stages, mesh={stage=2}"},
      {servers + ",shared_weights=true", "strategy=\"parameter_server\"", "shared_weights=True"},
      {servers + ",shard_optimizer=true", "strategy=\"parameter_server\"", "shard_optimizer=True"},
      {servers + ",wire=bf16", "strategy=\"parameter_server\"", "wire=\"bf16\""},
      {servers + ",buckets={}", "strategy=\"parameter_server\"", "buckets"},
      {servers + ",bucket_bytes=8", "strategy=\"parameter_server\"", "bucket_bytes=8"},
      {servers + ",factors=true", "strategy=\"parameter_server\"", "factors"},
      {asynchronous + ",mesh={data=2}", "asynchronous=True", "mesh={data=2}"},
      {asynchronous + ",split={w={data=0}}", "asynchronous=True", "split or placements"},
      {"shared_weights=true", "shared_weights=True", "backend=\"cuda\"", "cuda"},
      {"shared_weights=true,mesh={stage=2}", "shared_weights=True", "stages, mesh={stage=2}"},
      {"shared_weights=true,wire=int8", "shared_weights=True", "wire=\"int8\""},
      {"shard_optimizer=true,mesh={stage=2}", "shard_optimizer=True", "stages, mesh={stage=2}"},
      {"shard_optimizer=true,wire=bf16", "shard_optimizer=True", "wire=\"bf16\""},
      {"wire=int8,mesh={stage=2}", "wire=\"int8\"", "stages, mesh={stage=2}"},
      {"buckets={},mesh={stage=2}", "buckets", "stages, mesh={stage=2}"},
      {"buckets={}", "buckets", "backend=\"cuda\"", "cuda"},
      {"optimize=false,buckets={}", "optimize=False", "buckets"},
      {"optimize=false,factors=0.5", "optimize=False", "factors"},
      {"virtual_ranks=4," + servers, "virtual_ranks=4", "strategy=\"parameter_server\""},
      {"virtual_ranks=4,mesh={stage=2}", "virtual_ranks=4", "stages, mesh={stage=2}"},
      {"virtual_ranks=4,mesh={data=2,model=2}", "virtual_ranks=4", "mesh={data=2, model=2}"},
      {"virtual_ranks=4,shared_weights=true", "virtual_ranks=4", "shared_weights=True"},
      {"virtual_ranks=4,wire=bf16", "virtual_ranks=4", "wire=\"bf16\""},
      {"virtual_ranks=4,factors=true", "virtual_ranks=4", "factors"},
      {"virtual_ranks=4,buckets={}", "virtual_ranks=4", "buckets"},
      {"shares=5|3,strategy=parameter_server", "shares=5|3", "strategy=\"parameter_server\""},
      {"shares=5|3,mesh={stage=2}", "shares=5|3", "stages, mesh={stage=2}"},
      {"shares=5|3", "shares=5|3", "backend=\"cuda\"", "cuda"},
      {"shares=5|3,split={w={data=0}}", "shares=5|3", "split or placements"},
      {"shares=5|3,shared_weights=true", "shares=5|3", "shared_weights=True"},
      {"shares=5|3,shard_optimizer=true", "shares=5|3", "shard_optimizer=True"},
      {"shares=5|3,wire=int8", "shares=5|3", "wire=\"int8\""},
      {"shares=5|3,factors=true", "shares=5|3", "factors"},
      {"shares=5|3,verify_hardware=512", "shares=5|3", "verify_hardware=512"},
      {"shares=5|3,mesh={data=2,model=2}", "shares=5|3", "mesh={data=2, model=2}"},
      {"check_numerics=true,strategy=parameter_server", "check_numerics=True", "strategy=\"parameter_server\""},
      {"check_numerics=true,mesh={stage=2}", "check_numerics=True", "stages, mesh={stage=2}"},
      {"verify_hardware=512,strategy=parameter_server", "verify_hardware=512", "strategy=\"parameter_server\""},
      {"verify_hardware=512,mesh={stage=2}", "verify_hardware=512", "stages, mesh={stage=2}"},
      {"verify_hardware=512", "verify_hardware=512", "backend=\"cuda\"", "cuda"},
      {"verify_hardware=512,shared_weights=true", "verify_hardware=512", "shared_weights=True"},
      {"mesh={stage=2}", "stages, mesh={stage=2}", "backend=\"cuda\"", "cuda"},
  };
  for (const auto& [text, one, other, backend] : exclusions)
    EXPECT_EQ(ExclusionIn(text, backend), "compile: " + one + " does not go with " + other) << text;
}

TEST(CheckOptions, AcceptsOtherValuesOfTheseOptions) {
  for (const std::string text :
       {"strategy=parameter_server,factors=false", "strategy=parameter_server,mesh={data=2}",
        "strategy=parameter_server,split={w={data=0}}", "wire=bf16,mesh={stage=2}", "wire=int8,mesh={stage=1}",
        "shard_optimizer=true,shared_weights=true", "optimize=false,factors=false", "buckets={},wire=bf16",
        "virtual_ranks=4,factors=false", "virtual_ranks=4,mesh={data=2,model=1}"}) {
    EXPECT_EQ(ExclusionIn(text, "cpu"), "") << text;
  }
  EXPECT_EQ(ExclusionIn("wire=int8,tf32=true,shard_optimizer=false", "cuda"), "");
}

TEST(CheckOptions, TheNumberOfRanksDividesThatOfVirtualRanks) {
  const Graph graph("g");
  EXPECT_EQ(ErrorOfOptions(graph, "virtual_ranks=8,mesh={data=8}"), "");
  EXPECT_EQ(ErrorOfOptions(graph, "virtual_ranks=6,mesh={data=2}"), "compile: virtual_ranks=6 is not a power of two");
  EXPECT_EQ(ErrorOfOptions(graph, "virtual_ranks=8,mesh={data=3}"),
            "compile: virtual_ranks=8: 3 ranks cannot run so many evenly, since 3 does not divide 8");
  EXPECT_EQ(ErrorOfOptions(graph, "virtual_ranks=2,mesh={data=4}"),
            "compile: virtual_ranks=2: 4 ranks cannot run so many evenly, since 4 does not divide 2");
  Graph distributed("d");
  distributed.set_mesh(Mesh({{"data", 2}}));
  EXPECT_EQ(ErrorOfOptions(distributed, "virtual_ranks=2"),
            "compile: virtual_ranks=2: graph @d is already distributed, over the mesh {data=2}");
}

TEST(CheckOptions, ReturnsTheMeshOfAllRanks) {
  Graph graph("g");
  CompileOptions options;
  options.mesh = Mesh({{"data", 3}});
  EXPECT_EQ(*CheckOptions(graph, options, "cpu"), options.mesh);
  graph.set_mesh(Mesh({{"data", 2}}));
  EXPECT_EQ(CheckOptions(graph, options, "cpu").status().message(),
            "graph @g is distributed over the mesh {data=2}, but is to be compiled for {data=3}");
  options.mesh = Mesh();
  EXPECT_EQ(*CheckOptions(graph, options, "cpu"), graph.mesh());
  for (const Mesh& mesh : {graph.mesh(), Mesh({{"stage", 1}, {"data", 2}})}) {
    options.mesh = mesh;
    EXPECT_EQ(*CheckOptions(graph, options, "cpu"), mesh);
  }
  graph.set_mesh(options.mesh);  // with a stage
  EXPECT_EQ(*CheckOptions(graph, options, "cpu"), graph.mesh());
  graph.set_mesh(Mesh({{"data", 2}}));
  options.servers.emplace();
  EXPECT_EQ(CheckOptions(graph, options, "cpu").status().message(),
            "graph @g: strategy=\"parameter_server\": it is already distributed, over the mesh {data=2}");
}

TEST(CheckOptions, ExchangesNeedTheSumOfOneAxisInOneProgram) {
  const absl::StatusOr<Graph> step = ParseGraph(R"ir(
graph @step(%x: f32[8,4] split(0), state %w: f32[4]) -> (%w: f32[4]) {
  %grad = reduce_sum %x {dims=[0]} : f32[4]
  %sum = exchange %grad {by="some(k=1)", state=w} : f32[4]
  %next = sgd %w, %sum {learning_rate=0.1} : f32[4]
  return %next
}
)ir");
  ASSERT_TRUE(step.ok()) << step.status();
  const std::string reason = " and exchanges exclude each other; the step has exchange %sum by some(k=1)";
  EXPECT_THAT(ErrorOfOptions(*step, "virtual_ranks=4"), HasSubstr("virtual_ranks" + reason));
  EXPECT_THAT(ErrorOfOptions(*step, "strategy=parameter_server,mesh={data=2}"),
              HasSubstr("parameter servers" + reason));
  EXPECT_THAT(ErrorOfOptions(*step, "mesh={stage=2}"), HasSubstr("an axis \"stage\"" + reason));
  for (const std::string accepted : {"mesh={data=4}", "mesh={data=2,model=2}", "shard_optimizer=true,mesh={data=2}"})
    EXPECT_EQ(ErrorOfOptions(*step, accepted), "") << accepted;
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

TEST(CheckOptions, APassNeedsAPlaceInThePipeline) {
  CompileOptions options;
  options.passes = {{.pass = {"halve", {}}, .place = "distribut"}};
  EXPECT_THAT(
      std::string(CheckOptions(Graph("empty"), options, "cpu").status().message()),
      testing::StartsWith("compile: pass halve: after=\"distribut\" is no pass of the pipeline; the places are "));
}

}  // namespace
}  // namespace lockstep
