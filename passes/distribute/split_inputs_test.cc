// Tests splits of inputs and states: the user's choices, the states that follow another state, and the errors.

#include "passes/distribute/split_inputs.h"

#include "core/printer.h"
#include "gtest/gtest.h"

namespace lockstep::passes {
namespace {

// A step with an optimizer that keeps two states for a variable besides the number of steps, and one that keeps none.
constexpr char kStep[] = R"(
graph @step(%x: f32[8,4] split(0), %g: f32[4,6], state %w: f32[4,6], state %m: f32[4,6], state %v: f32[4,6], state %n: i64[], state %u: f32[4,6]) -> (%w: f32[4,6], %m: f32[4,6], %v: f32[4,6], %u: f32[4,6]) {
  %w1, %m1, %v1 = adam %w, %m, %v, %n, %g {learning_rate=0.1} : f32[4,6], f32[4,6], f32[4,6]
  %u1 = sgd %u, %g {learning_rate=0.1} : f32[4,6]
  return %w1, %m1, %v1, %u1
}
)";

const Mesh& TwoByThree() {
  static const Mesh mesh({{"data", 2}, {"model", 3}});
  return mesh;
}

// Returns the placements of all inputs after a split, as "x data=split(0), w model=split(1)", or the error.
std::string Split(const InputSplits& splits, const Mesh& mesh = TwoByThree(), const char* text = kStep) {
  absl::StatusOr<Graph> graph = ParseGraph(text);
  if (!graph.ok()) return graph.status().ToString();
  const absl::Status status = SplitInputs(*graph, splits, mesh);
  if (!status.ok()) return std::string(status.message());
  std::string placed;
  for (const Input& input : graph->inputs()) {
    for (const auto& [axis, placement] : input.placements())
      placed += (placed.empty() ? "" : ", ") + input.name() + " " + axis + "=" + placement.ToString();
  }
  return placed;
}

TEST(SplitInputs, NothingSaidChangesNothing) { EXPECT_EQ(Split({}), "x data=split(0)"); }

TEST(SplitInputs, AStateAndWhatItsOptimizerKeepsAreSplitAlike) {
  EXPECT_EQ(Split({{"w", {{"model", 1}}}}), "x data=split(0), w model=split(1), m model=split(1), v model=split(1)");
  EXPECT_EQ(Split({{"w", {{"data", 0}, {"model", 1}}}}),
            "x data=split(0), w data=split(0), w model=split(1), m data=split(0), m model=split(1), "
            "v data=split(0), v model=split(1)");
}

TEST(SplitInputs, WhatIsSaidOfAKeptStateGoesBeforeWhatFollows) {
  EXPECT_EQ(Split({{"w", {{"model", 1}}}, {"v", {{"data", 0}}}}),
            "x data=split(0), w model=split(1), m model=split(1), v data=split(0)");
}

TEST(SplitInputs, TwoAxesDoNotSplitOneDimension) {
  EXPECT_EQ(
      Split({{"w", {{"data", 1}, {"model", 1}}}}),
      "placement: w (f32[4,6]) along axis model: axis data splits dimension 1 already, and a dimension that two axes "
      "split cannot be gathered");
}

// Returns the splits of all inputs by the choices, as "w model=1, m replicated", or the error.
std::string Chosen(const PlacementChoices& choices) {
  const Graph graph = ParseGraph(kStep).value();
  const absl::StatusOr<InputSplits> splits = SplitsOf(graph, choices);
  if (!splits.ok()) return std::string(splits.status().message());
  std::string said;
  for (const auto& [name, dims] : *splits) {
    said += (said.empty() ? "" : ", ") + name;
    for (const auto& [axis, dim] : dims) said += " " + axis + "=" + std::to_string(dim);
    if (dims.empty()) said += " replicated";
  }
  return said;
}

TEST(SplitsOf, TheFirstThatMatchesCountsAndPatternsAreNotOfWhatOptimizersKeep) {
  EXPECT_EQ(Chosen({{"w", {{"model", 1}}}, {"[uwmv]", {}}}), "u replicated, w model=1");
  EXPECT_EQ(Chosen({{"[gu]", {}}, {"[gw]", {{"model", 1}}}}), "g replicated, u replicated, w model=1");
  EXPECT_EQ(Chosen({{"m", {{"model", 1}}}}), "m model=1") << "a name is of whatever it names";
  EXPECT_EQ(Chosen({}), "");
}

TEST(SplitsOf, WhatMatchesNothingIsAnError) {
  EXPECT_EQ(
      Chosen({{"w", {}}, {"fc*", {{"model", 0}}}}),
      "placement: graph @step has no input or state 'fc*', and none that it matches; there are x, g, w, m, v, n, u");
}

TEST(SplitsOf, WhatOthersLeaveNothingIsAnError) {
  const auto said = [](const std::string& name, const std::string& before) {
    return "placement: '" + name + "' has no effect: choices before it, such as '" + before +
           "', match all that it matches, and the first that matches counts";
  };
  EXPECT_EQ(Chosen({{"*", {}}, {"w", {{"model", 1}}}}), said("w", "*"));
  EXPECT_EQ(Chosen({{"g", {{"model", 1}}}, {"w", {}}, {"[gw]", {}}}), said("[gw]", "g"));
  EXPECT_EQ(Chosen({{"[gw]", {}}, {"w", {}}}), "g replicated, w replicated") << "it says the same";
  EXPECT_EQ(Chosen({{"w", {{"model", 1}}}, {"w", {}}}), "w model=1") << "split of compile goes before its placements";
}

TEST(SplitInputs, NothingFollowsDataAKeptStateOrAStateThatNothingIsKeptFor) {
  EXPECT_EQ(Split({{"g", {{"model", 1}}}}), "x data=split(0), g model=split(1)");
  EXPECT_EQ(Split({{"m", {{"model", 1}}}}), "x data=split(0), m model=split(1)");
  EXPECT_EQ(Split({{"u", {{"model", 1}}}}), "x data=split(0), u model=split(1)");
}

// Returns the splits of SplitsOfOptimizers along data, after a split, as "m 0, v 0".
std::string OfOptimizers(const InputSplits& splits, const Mesh& mesh, const char* text = kStep) {
  Graph graph = ParseGraph(text).value();
  EXPECT_TRUE(SplitInputs(graph, splits, mesh).ok());
  std::string said;
  for (const auto& [name, dims] : SplitsOfOptimizers(graph, mesh, "data")) {
    EXPECT_EQ(dims.size(), 1u);
    said += (said.empty() ? "" : ", ") + name + " " + std::to_string(dims.at("data"));
  }
  return said;
}

TEST(SplitsOfOptimizers, AreOfWhatOptimizersKeepAlongTheFirstDimensionThatRanksCanShare) {
  EXPECT_EQ(OfOptimizers({}, TwoByThree()), "m 0, v 0");
  EXPECT_EQ(OfOptimizers({}, Mesh({{"data", 3}})), "m 1, v 1");
  EXPECT_EQ(OfOptimizers({}, Mesh({{"data", 5}})), "") << "nothing can be shared by five";
  EXPECT_EQ(OfOptimizers({}, Mesh({{"model", 2}})), "") << "there is no such axis";
}

TEST(SplitsOfOptimizers, LeaveWhatIsSharedAlready) {
  EXPECT_EQ(OfOptimizers({{"w", {{"data", 1}}}}, TwoByThree()), "") << "the variable, and so its states";
  EXPECT_EQ(OfOptimizers({{"v", {{"data", 1}}}}, TwoByThree()), "m 0");
  EXPECT_EQ(OfOptimizers({{"w", {{"model", 1}}}}, TwoByThree()), "m 0, v 0") << "along another axis";
  EXPECT_EQ(OfOptimizers({{"w", {{"model", 0}}}}, Mesh({{"data", 2}, {"model", 2}})), "m 1, v 1");
  EXPECT_EQ(OfOptimizers({{"w", {{"model", 0}}}}, Mesh({{"data", 4}, {"model", 2}})), "") << "rows are taken";
}

TEST(SplitInputs, ErrorsNameTheInputAndTheAxis) {
  EXPECT_EQ(Split({{"b", {{"model", 0}}}}),
            "placement: graph @step has no input or state 'b'; there are x, g, w, m, v, n, u");
  EXPECT_EQ(Split({{"w", {{"rows", 0}}}}),
            "placement: w (f32[4,6]) along axis rows: the mesh {data=2, model=3} has no such axis");
  EXPECT_EQ(Split({{"w", {{"data", 2}}}}), "placement: w (f32[4,6]) along axis data: there is no dimension 2");
  EXPECT_EQ(
      Split({{"w", {{"model", 0}}}}),
      "placement: w (f32[4,6]) along axis model: the ranks of the mesh {data=2, model=3} cannot share dimension 0 "
      "evenly");
  EXPECT_EQ(Split({{"w", {{"model", 1}}}}, Mesh({{"data", 2}, {"model", 0}})),
            "mesh axis model has size 0, expected at least 1");
}

TEST(SplitInputs, WhatIsDistributedAlreadyIsRefused) {
  constexpr char kPlaced[] = "mesh {data=2}\ngraph @placed(%x: f32[4]) -> (y: f32[4]) {\n  return %x\n}\n";
  EXPECT_EQ(Split({{"x", {{"data", 0}}}}, Mesh({{"data", 2}}), kPlaced),
            "placement: graph @placed is distributed already, over {data=2}");
}

}  // namespace
}  // namespace lockstep::passes
