// Channels-last values in loops: the rewritten bodies, and the decision.

#include "backends/loops/channels_last.h"

#include <map>

#include "core/printer.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"

namespace lockstep {
namespace {

using testing::ElementsAre;

Graph Parse(std::string_view text) {
  auto graph = ParseGraph(text);
  LOCKSTEP_CHECK(graph.ok()) << graph.status() << " in " << text;
  return std::move(*graph);
}

TEST(ChannelsLastBody, MovesTheValuesOfOneShape) {
  const Graph body = Parse(R"(
graph @f(%x: f32[8,5,3,4], %b: f32[5], %r: f32[5,3], %n: f32[8]) -> (y: f32[8,5,3,4], s: f32[8,5], t: f32[8]) {
  %bb = broadcast %b {dims=[1], shape=[8,5,3,4]} : f32[8,5,3,4]
  %rr = broadcast %r {dims=[1,2], shape=[8,5,3,4]} : f32[8,5,3,4]
  %i = iota {dim=2, dtype=f32, shape=[8,5,3,4]} : f32[8,5,3,4]
  %a = add %x, %bb : f32[8,5,3,4]
  %c = mul %a, %rr : f32[8,5,3,4]
  %y = sub %c, %i : f32[8,5,3,4]
  %s = reduce_sum %y {dims=[2,3]} : f32[8,5]
  %t = neg %n : f32[8]
  return %y, %s, %t
}
)");
  const auto moved = ChannelsLastBody(body, Shape({8, 5, 3, 4}));
  ASSERT_TRUE(moved.ok()) << moved.status();
  const Graph expected = Parse(R"(
graph @f(%x: f32[8,3,4,5], %b: f32[5], %r: f32[5,3], %n: f32[8]) -> (y: f32[8,3,4,5], s: f32[8,5], t: f32[8]) {
  %bb = broadcast %b {dims=[1], shape=[8,5,3,4]} : f32[8,5,3,4]
  %0 = transpose %bb {permutation=[0,2,3,1]} : f32[8,3,4,5]
  %rr = broadcast %r {dims=[1,2], shape=[8,5,3,4]} : f32[8,5,3,4]
  %1 = transpose %rr {permutation=[0,2,3,1]} : f32[8,3,4,5]
  %i = iota {dim=2, dtype=f32, shape=[8,5,3,4]} : f32[8,5,3,4]
  %2 = transpose %i {permutation=[0,2,3,1]} : f32[8,3,4,5]
  %a = add %x, %0 : f32[8,3,4,5]
  %c = mul %a, %1 : f32[8,3,4,5]
  %y = sub %c, %2 : f32[8,3,4,5]
  %s = reduce_sum %y {dims=[1,2]} : f32[8,5]
  %t = neg %n : f32[8]
  return %y, %s, %t
}
)");
  EXPECT_EQ(moved->ToString(), expected.ToString());
}

TEST(ChannelsLastBody, RefusesWhatTheOrderOfElementsMattersTo) {
  for (const std::string_view text : {
           "graph @f(%x: f32[8,5,3,4]) -> (y: f32[40,12]) {\n  %y = reshape %x {shape=[40,12]} : f32[40,12]\n  return "
           "%y\n}\n",
           "graph @f(%x: f32[8,5,3,4]) -> (y: f32[5,8,3,4]) {\n"
           "  %y = transpose %x {permutation=[1,0,2,3]} : f32[5,8,3,4]\n  return %y\n}\n",
           "graph @f(%x: f32[8,5,3,4]) -> (y: f32[8,5,3]) {\n  %y = reduce_sum %x {dims=[3]} : f32[8,5,3]\n  return "
           "%y\n}\n",
           "graph @f(%x: f32[8,5,3,4]) -> (y: f32[8,5,3,4,2]) {\n"
           "  %y = broadcast %x {dims=[0,1,2,3], shape=[8,5,3,4,2]} : f32[8,5,3,4,2]\n  return %y\n}\n",
           "graph @f(%x: f32[8,5,3,4]) -> (y: f32[8,5,3,4]) {\n"
           "  %y = broadcast %x {dims=[0,1,2,3], shape=[8,5,3,4]} : f32[8,5,3,4]\n  return %y\n}\n",
       }) {
    const auto moved = ChannelsLastBody(Parse(text), Shape({8, 5, 3, 4}));
    EXPECT_TRUE(absl::IsUnimplemented(moved.status())) << text;
  }
}

// The transpose of an input has no name of its own, and a later input has the first name that a node would get.
TEST(ChannelsLastBody, ReadsInputsInTheOtherOrderWhoseNamesAreNumbers) {
  const Graph body = Parse(R"(
graph @f(%0: f32[8,5,3,4], %1: f32[8,5,3,4]) -> (y: f32[8,5,3,4]) {
  %y = add %0, %1 : f32[8,5,3,4]
  return %y
}
)");
  const auto moved = ChannelsLastBody(body, Shape({8, 5, 3, 4}), {false, false});
  ASSERT_TRUE(moved.ok()) << moved.status();
  EXPECT_EQ(moved->inputs()[1].name(), "1");
}

// An input in the other order is read at transposed indices, whichever order the body computes in.
TEST(ChannelsLastBody, ReadsInputsInTheOtherOrder) {
  const Graph body = Parse(R"(
graph @f(%x: f32[8,5,3,4], %z: f32[8,5,3,4]) -> (y: f32[8,5,3,4]) {
  %y = add %x, %z : f32[8,5,3,4]
  return %y
}
)");
  const auto last = ChannelsLastBody(body, Shape({8, 5, 3, 4}), {true, false});
  ASSERT_TRUE(last.ok()) << last.status();
  EXPECT_EQ(last->ToString(), Parse(R"(
graph @f(%x: f32[8,3,4,5], %z: f32[8,5,3,4]) -> (y: f32[8,3,4,5]) {
  %0 = transpose %z {permutation=[0,2,3,1]} : f32[8,3,4,5]
  %y = add %x, %0 : f32[8,3,4,5]
  return %y
}
)")
                                  .ToString());
  const auto rows = ChannelsLastBody(body, std::nullopt, {true, false});
  ASSERT_TRUE(rows.ok()) << rows.status();
  EXPECT_EQ(rows->ToString(), Parse(R"(
graph @f(%x: f32[8,3,4,5], %z: f32[8,5,3,4]) -> (y: f32[8,5,3,4]) {
  %0 = transpose %x {permutation=[0,3,1,2]} : f32[8,5,3,4]
  %y = add %0, %z : f32[8,5,3,4]
  return %y
}
)")
                                  .ToString());
}

TEST(BodyOfTransposed, ReadsInputsAtTransposedIndices) {
  const Graph body = Parse(R"(
graph @f(%x: f32[8,5,3], %0: f32[5,3]) -> (s: f32[8,5]) {
  %b = broadcast %0 {dims=[1,2], shape=[8,5,3]} : f32[8,5,3]
  %p = mul %x, %b : f32[8,5,3]
  %s = reduce_sum %p {dims=[2]} : f32[8,5]
  return %s
}
)");
  const auto moved = BodyOfTransposed(body, {{1, 2, 0}, {}});
  ASSERT_TRUE(moved.ok()) << moved.status();
  EXPECT_EQ(moved->ToString(), Parse(R"(
graph @f(%x: f32[3,8,5], %0: f32[5,3]) -> (s: f32[8,5]) {
  %1 = transpose %x {permutation=[1,2,0]} : f32[8,5,3]
  %b = broadcast %0 {dims=[1,2], shape=[8,5,3]} : f32[8,5,3]
  %p = mul %1, %b : f32[8,5,3]
  %s = reduce_sum %p {dims=[2]} : f32[8,5]
  return %s
}
)")
                                   .ToString());
}

// --- The decision ----------------------------------------------------------------------------------------------------

TEST(ChannelsLastStrides, AreThoseOfDenseMemory) {
  EXPECT_THAT(ChannelsLastStrides({2, 3, 4, 5}), ElementsAre(60, 1, 15, 3));
  EXPECT_THAT(ChannelsLastStrides({2, 3, 4}), ElementsAre(12, 1, 3));
}

TEST(IsAlsoRowMajor, WithOneChannelOrOnePoint) {
  EXPECT_TRUE(IsAlsoRowMajor(Shape({8, 1, 3, 4})));
  EXPECT_TRUE(IsAlsoRowMajor(Shape({8, 5, 1, 1})));
  EXPECT_TRUE(IsAlsoRowMajor(Shape({8, 5})));
  EXPECT_FALSE(IsAlsoRowMajor(Shape({8, 5, 1, 2})));
}

// Decides for a loop of two operands and one result of a shape, and an operand that is broadcast.
bool IsChannelsLastLoop(bool first, bool second, int need) {
  const Graph graph = Parse(R"(
graph @f(%b: f32[5], %x: f32[8,5,3,4], %z: f32[8,5,3,4]) -> (y: f32[8,5,3,4]) {
  %y = fusion %b, %x, %z {body=graph @body(%b: f32[5], %x: f32[8,5,3,4], %z: f32[8,5,3,4]) -> (y: f32[8,5,3,4]) {
    %bb = broadcast %b {dims=[1], shape=[8,5,3,4]} : f32[8,5,3,4]
    %s = add %x, %z : f32[8,5,3,4]
    %y = mul %s, %bb : f32[8,5,3,4]
    return %y
  }} : f32[8,5,3,4]
  return %y
}
)");
  const std::map<std::string, bool> is_last = {{"b", false}, {"x", first}, {"z", second}};
  const std::optional<Shape> shape = ChannelsLastShapeOf(
      *graph.results()[0].value.node,
      {.is_channels_last = [&](Value value) { return is_last.at(value.name()); }, .need = [&](Value) { return need; }});
  EXPECT_EQ(shape.value_or(Shape({8, 5, 3, 4})), Shape({8, 5, 3, 4}));
  return shape.has_value();
}

TEST(ChannelsLastShapeOf, FollowsTheReadersAndElseMostOperands) {
  EXPECT_FALSE(IsChannelsLastLoop(false, false, 0));
  EXPECT_TRUE(IsChannelsLastLoop(false, true, 0));
  EXPECT_TRUE(IsChannelsLastLoop(true, true, 0));
  EXPECT_TRUE(IsChannelsLastLoop(false, false, 1));
  EXPECT_FALSE(IsChannelsLastLoop(true, true, -1));
}

TEST(ChannelsLastShapeOf, ResultsOfOtherShapesDoNotDecide) {
  const Graph graph = Parse(R"(
graph @f(%x: f32[8,5,3,4]) -> (y: f32[8,5,3,4], m: f32[8,5,3]) {
  %y, %m = fusion %x {body=graph @body(%x: f32[8,5,3,4]) -> (y: f32[8,5,3,4], m: f32[8,5,3]) {
    %y = neg %x : f32[8,5,3,4]
    %m = reduce_max %x {dims=[3]} : f32[8,5,3]
    return %y, %m
  }} : f32[8,5,3,4], f32[8,5,3]
  return %y, %m
}
)");
  const auto need = [](Value value) { return value.shape().rank() == 4 ? 1 : -1; };
  EXPECT_EQ(ChannelsLastShapeOf(*graph.results()[0].value.node,
                                {.is_channels_last = [](Value) { return false; }, .need = need}),
            Shape({8, 5, 3, 4}));
}

}  // namespace
}  // namespace lockstep
