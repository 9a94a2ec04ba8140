// Tests passes of the caller: their places in the pipeline, and what they must keep.

#include "passes/extra_passes.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <functional>

#include "core/printer.h"
#include "passes/pipeline.h"

namespace lockstep::passes {
namespace {

using testing::HasSubstr;

constexpr char kProgramToKeep[] = R"(
graph @step(%x: f32[8,4], state %w: f32[4], setting %rate: f64[] in [0.0, inf) = 0.5) -> (%w: f32[4], y: f32[8]) {
  %y = reduce_sum %x {dims=[1]} : f32[8]
  %w1 = neg %w : f32[4]
  return %w1, %y
}
)";

Pass Named(std::string name) {
  return {std::move(name), [](Graph&) -> absl::StatusOr<bool> { return false; }};
}

ExtraPass After(std::string place, std::string name) { return {Named(std::move(name)), std::move(place)}; }
ExtraPass Before(std::string place, std::string name) { return {Named(std::move(name)), std::move(place), true}; }

std::vector<std::string> PipelineWith(std::vector<ExtraPass> extra, bool optimize = true) {
  PipelineOptions options;
  options.optimize = optimize;
  options.extra = std::move(extra);
  std::vector<std::string> names;
  for (const Pass& pass : MakePipeline(options)) names.push_back(pass.name);
  return names;
}

// Returns the names from `first` on, `count` of them.
std::vector<std::string> Part(const std::vector<std::string>& names, const std::string& first, size_t count) {
  const auto begin = std::find(names.begin(), names.end(), first);
  return {begin, begin + static_cast<std::ptrdiff_t>(std::min<size_t>(count, names.end() - begin))};
}

std::string ErrorOf(std::vector<ExtraPass> extra) { return std::string(CheckExtraPasses(extra).message()); }

TEST(ExtraPasses, RunBesideTheirPlacesInTheGivenOrder) {
  const std::vector<std::string> names = PipelineWith(
      {After("distribute", "a"), Before("distribute", "b"), After("distribute", "c"), Before("split-inputs", "first")});
  EXPECT_THAT(Part(names, "move-updates-to-servers", 6),
              testing::ElementsAre("move-updates-to-servers", "b", "distribute", "a", "c", "lower-exchanges"));
  EXPECT_EQ(names.front(), "first");
  EXPECT_EQ(names.size(), PipelineWith({}).size() + 4);
}

TEST(ExtraPasses, RunInTheShortPipelineBeforeTheNextPassThatItHas) {
  const std::vector<std::string> names = PipelineWith({After("distribute", "a"), After("form-reduce-scatters", "b"),
                                                       Before("inference-mode", "c"), Before("localize", "last")},
                                                      /*optimize=*/false);
  EXPECT_THAT(Part(names, "check-shares", 9),
              testing::ElementsAre("check-shares", "c", "move-updates-to-servers", "distribute", "a", "lower-exchanges",
                                   "dce", "b", "choose-wire"));
  EXPECT_THAT(Part(names, "legalize", 3), testing::ElementsAre("legalize", "last", "localize"));
}

// Every place that is listed can be named, on both sides, and in both pipelines.
TEST(ExtraPasses, EveryPlaceIsInEveryPipeline) {
  const std::vector<std::string> places = Places(MakePipeline({}));
  EXPECT_THAT(places, testing::IsSupersetOf({"split-inputs", "distribute", "merge-collectives", "localize"}));
  for (const std::string& place : places) {
    for (bool before : {true, false}) {
      const std::vector<ExtraPass> extra = {{Named("a"), place, before}};
      EXPECT_EQ(CheckExtraPasses(extra).ok(), before || place != "localize") << place;
      if (!before && place == "localize") continue;
      for (bool optimize : {true, false}) EXPECT_THAT(PipelineWith(extra, optimize), testing::Contains("a")) << place;
    }
  }
}

TEST(ExtraPasses, APassWithoutAPlaceIsAnErrorWithThePlaces) {
  EXPECT_THAT(ErrorOf({After("distributed", "a")}),
              testing::AllOf(testing::StartsWith("pass a: after=\"distributed\" is no pass of the pipeline; the places "
                                                 "are split-inputs, shard-optimizers, "),
                             testing::EndsWith(", quantize-wire, legalize, localize")));
  EXPECT_THAT(ErrorOf({Before("simplify", "a")}),
              HasSubstr("pass a: before=\"simplify\" is in the pipeline several times; the places are "));
  EXPECT_THAT(ErrorOf({Before("lower-wire", "a")}), HasSubstr("before=\"lower-wire\" runs on local graphs, in which"));
  EXPECT_EQ(ErrorOf({After("localize", "a")}),
            "pass a: after=\"localize\": after it graphs are local, and passes cannot insert nodes; "
            "before=\"localize\" is the last place");
}

TEST(ExtraPasses, TwoOfOneNameAreAnError) {
  EXPECT_EQ(ErrorOf({After("distribute", "a"), Before("localize", "a")}), "pass a: another pass has this name");
  EXPECT_EQ(ErrorOf({After("distribute", "dce")}), "pass dce: another pass has this name");
}

TEST(ExtraPasses, TheirTextHasALineForEach) {
  std::vector<ExtraPass> extra = {After("distribute", "a"), Before("localize", "b")};
  extra[1].version = "version 2";
  EXPECT_EQ(Describe(extra), "pass a after distribute\npass b before localize: version 2\n");
}

// Runs a pipeline of one pass, `change`.
std::string ErrorOfChange(std::function<absl::Status(Graph&)> change) {
  Graph graph = *ParseGraph(kProgramToKeep);
  const Pass pass = {"change", [change = std::move(change)](Graph& changed) -> absl::StatusOr<bool> {
                       RETURN_IF_ERROR(change(changed));
                       return true;
                     }};
  const std::vector<Pass> pipeline = {Named("place")};
  return std::string(RunPasses(WithExtraPasses(pipeline, {{pass, "place"}}, pipeline), graph).message());
}

absl::Status RemoveResult(Graph& graph, size_t i) {
  graph.RemoveResult(i);
  return absl::OkStatus();
}

// Gives the result y the value of another type.
absl::Status NarrowResult(Graph& graph) {
  graph.set_result_value(1, graph.FindResult("w", /*is_state=*/true)->value);
  return absl::OkStatus();
}

TEST(ExtraPasses, APassThatRemovesWhatCallersKnowIsAnErrorThatNamesIt) {
  EXPECT_EQ(ErrorOfChange([](Graph& graph) { return RemoveResult(graph, 0); }),
            "pass change: it removes the next value of state w");
  EXPECT_EQ(ErrorOfChange([](Graph& graph) { return RemoveResult(graph, 1); }), "pass change: it removes the result y");
  EXPECT_EQ(ErrorOfChange([](Graph& graph) { return graph.RemoveInput("rate"); }),
            "pass change: it removes the setting rate");
  EXPECT_EQ(ErrorOfChange(NarrowResult), "pass change: it changes the type of the result y from f32[8] to f32[4]");
  EXPECT_EQ(ErrorOfChange([](Graph& graph) { return graph.AddResult("more", graph.inputs()[0].value); }), "");
}

}  // namespace
}  // namespace lockstep::passes
