// Which states ranks share, and what their program is then.

#include "backends/planning/share_states.h"

#include "core/local_types.h"
#include "core/printer.h"
#include "gtest/gtest.h"

namespace lockstep {
namespace {

// What ranks update by slices, what none updates, and what all update alike.
constexpr char kBefore[] = R"(mesh {data=2}
local graph @step(%g: f32[2,3] split(0), state %w: f32[4,3], state %w.part: f32[1], state %frozen: f32[4], state %v: f32[4,3], state %n: f32[]) -> (%w: f32[4,3], %v: f32[4,3], %n: f32[]) {
  %s = shard %w {axis=data, dim=0} : f32[2,3] split(0)
  %t = shard %v {axis=data, dim=0} : f32[2,3] split(0)
  %a = sub %s, %g : f32[2,3] split(0)
  %b = sub %t, %a : f32[2,3] split(0)
  %w1, %v1 = all_gather %a, %b {axis=data, bucket=0, dim=0} : f32[4,3], f32[4,3]
  %n1 = neg %n : f32[]
  return %w1, %v1, %n1
}
)";

constexpr char kAfter[] = R"(mesh {data=2}
local graph @step(%g: f32[2,3] split(0), state %w: f32[4,3], state %w.part: f32[1], state %frozen: f32[4], state %v: f32[4,3], state %n: f32[], state %w.part1: f32[2,3] split(0), state %v.part: f32[2,3] split(0)) -> (%n: f32[], %w.part1: f32[2,3] split(0), %v.part: f32[2,3] split(0)) {
  %a = sub %w.part1, %g : f32[2,3] split(0)
  %b = sub %v.part, %a : f32[2,3] split(0)
  %n1 = neg %n : f32[]
  return %n1, %a, %b
}
)";

std::string WithAll(std::string text, std::string_view from, std::string_view to) {
  for (size_t at = text.find(from); at != std::string::npos; at = text.find(from, at + to.size()))
    text.replace(at, from.size(), to);
  return text;
}

// "w by w.part, frozen", of what is shared.
std::string Share(Graph& graph) {
  const auto shared = ShareStates(graph, "data");
  EXPECT_TRUE(shared.ok()) << shared.status();
  std::string said;
  for (const StateToShare& state : *shared) {
    EXPECT_EQ(state.axis, "data");
    said += (said.empty() ? "" : ", ") + state.name + (state.part.empty() ? "" : " by " + state.part);
  }
  return said;
}

Graph Parse(const std::string& text) {
  absl::StatusOr<Graph> graph = ParseGraph(text);
  LOCKSTEP_CHECK(graph.ok()) << graph.status();
  return *std::move(graph);
}

TEST(ShareStates, ThatAreUpdatedBySlicesOrByNobody) {
  Graph graph = Parse(kBefore);
  EXPECT_EQ(Share(graph), "w by w.part1, w.part, frozen, v by v.part");
  EXPECT_EQ(graph.ToString(), kAfter);
}

TEST(ShareStates, NotWhatIsGatheredForSomethingElseToo) {
  std::string text = WithAll(kBefore, "  %n1 =", "  %read = neg %w1 : f32[4,3]\n  %n1 =");
  text = WithAll(WithAll(text, "-> (", "-> (read: f32[4,3], "), "return ", "return %read, ");
  Graph graph = Parse(text);
  EXPECT_EQ(Share(graph), "w.part, frozen, v by v.part");
  EXPECT_NE(graph.ToString().find("%w1 = all_gather %a {axis=data, bucket=0, dim=0} : f32[4,3]"), std::string::npos)
      << graph.ToString();
}

// Slices of columns are no part of memory.
TEST(ShareStates, NotByColumns) {
  std::string text = WithAll(kBefore, "f32[4,3]", "f32[3,4]");
  text = WithAll(text, "f32[2,3] split(0)", "f32[3,2] split(1)");
  text = WithAll(text, "dim=0", "dim=1");
  Graph graph = Parse(text);
  EXPECT_EQ(Share(graph), "w.part, frozen");
}

TEST(ShareStates, NotAlongOneRankOrAnAxisThatIsNotThere) {
  std::string text = WithAll(kBefore, "data=2", "data=1, model=2");
  text = WithAll(text, "f32[2,3]", "f32[4,3]");
  Graph graph = Parse(text);
  EXPECT_EQ(Share(graph), "");
  Graph other = Parse(WithAll(kBefore, "data", "model"));
  EXPECT_EQ(Share(other), "");
}

}  // namespace
}  // namespace lockstep
