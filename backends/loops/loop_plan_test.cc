#include "backends/loops/loop_plan.h"

#include "core/op_def.h"
#include "core/printer.h"
#include "gtest/gtest.h"

namespace lockstep {
namespace {

std::vector<Element> ElementsOf(const LoopPlan& plan, Element::Kind kind) {
  std::vector<Element> found;
  for (const Element& element : plan.elements) {
    if (element.kind == kind) found.push_back(element);
  }
  return found;
}

TEST(PlanLoop, MoversLeaveOnlyPositions) {
  const Graph body = ParseGraph(R"(graph @f(%x: f32[5,8], %y: f32[2,3]) -> (z: f32[3,2]) {
    %s = slice %x {start=[1,2], limit=[5,8], stride=[2,2]} : f32[2,3]
    %a = add %s, %y : f32[2,3]
    %z = transpose %a {permutation=[1,0]} : f32[3,2]
    return %z
  })")
                         .value();
  const LoopPlan plan = PlanLoop(body).value();
  EXPECT_EQ(plan.extents, (std::vector<int64_t>{3, 2}));
  ASSERT_EQ(plan.elements.size(), 3U);
  EXPECT_EQ(plan.elements[0].at, (Affine{10, {2, 16}}));
  EXPECT_EQ(plan.elements[1].at, (Affine{0, {1, 3}}));
  EXPECT_EQ(plan.elements[2].kind, Element::Kind::kOp);
}

TEST(PlanLoop, AGeneratorIsACountOfTheLoopsIndices) {
  const Graph body = ParseGraph(R"(graph @f() -> (y: i64[3,4]) {
    %y = iota {shape=[3,4], dtype=i64, dim=0} : i64[3,4]
    return %y
  })")
                         .value();
  const LoopPlan plan = PlanLoop(body).value();
  const std::vector<Element> counts = ElementsOf(plan, Element::Kind::kCount);
  ASSERT_EQ(counts.size(), 1U);
  EXPECT_EQ(counts[0].at, (Affine{0, {1, 0}}));
}

// Sums of columns with rows of 1,000, for a target with other vectors and caches.
TEST(PlanLoop, ATargetsSizesCutIt) {
  const Graph body = ParseGraph(R"(graph @f(%x: f32[1000,300]) -> (y: f32[300]) {
    %e = neg %x : f32[1000,300]
    %y = reduce_sum %e {dims=[0]} : f32[300]
    return %y
  })")
                         .value();
  const LoopPlan usual = PlanLoop(body).value();
  EXPECT_EQ(usual.lanes, 16U);
  EXPECT_EQ(usual.num_blocks(), 2);
  EXPECT_EQ(usual.num_chunks, 9);
  const LoopSizes sizes{.lanes = 32, .block = 64, .column_block = 100, .chunk = 30000, .units = 64, .grain = 1};
  const LoopPlan other = PlanLoop(body, sizes).value();
  EXPECT_EQ(other.lanes, 32U);
  EXPECT_EQ(other.num_blocks(), 3);
  EXPECT_EQ(other.num_chunks, 3);
  EXPECT_EQ(other.info.grain, 1);
}

// A few heavy elements are worth a thread, and fewer vectors hide the latency of their sum.
TEST(PlanLoop, HeavyElementsAreCutFiner) {
  const auto plan = [](const std::string& op) {
    return PlanLoop(ParseGraph("graph @f(%x: f32[819200]) -> (y: f32[819200]) {\n %y = " + op +
                               " %x : f32[819200]\n return %y\n}")
                        .value())
        .value();
  };
  EXPECT_EQ(plan("neg").info.extent, 200);
  EXPECT_EQ(plan("neg").info.grain, 8);  // blocks of 4096 elements
  EXPECT_EQ(plan("exp").info.grain, 1);
  const auto sum = [](const std::string& op) {
    return PlanLoop(ParseGraph("graph @f(%x: f32[9,4096]) -> (y: f32[9]) {\n %e = " + op +
                               " %x : f32[9,4096]\n %y = reduce_sum %e {dims=[1]} : f32[9]\n return %y\n}")
                        .value())
        .value();
  };
  EXPECT_EQ(sum("neg").lanes, 64U);
  EXPECT_EQ(sum("exp").lanes, 32U);
}

// The planner does not use names of ops: the properties in an op's block are sufficient.
TEST(PlanLoop, OpsThatItHasNeverSeen) {
  const OpDef reversed = OpDef("reversed")
                             .Operand("x")
                             .MovesFrom([](const IndexContext& c) {
                               const int64_t last = c.operand()[0] - 1;
                               return IndexMap{Affine::Index(1, 0, -1, last)};
                             })
                             .Infer([](InferContext& c) { return c.SetResult(c.operand(0)); });
  const OpDef odd_numbers = OpDef("odd_numbers")
                                .Counts([](const IndexContext&) { return Affine::Index(1, 0, 2, 1); })
                                .Infer([](InferContext& c) { return c.SetResult(DType::kF32, Shape({4})); });
  const OpDef smallest = OpDef("smallest")
                             .Operand("x")
                             .Attr<std::vector<int64_t>>("dims")
                             .Reduces(ReduceKind::kMin)
                             .Infer([](InferContext& c) { return c.SetResult(c.dtype(0), Shape()); });
  Graph body("f");
  const Value x = body.AddInput("x", TensorType{DType::kF32, {4}}).value();
  const auto insert = [&](const OpDef& op, std::vector<Value> operands, AttributeMap attributes = {}) {
    return body.Insert({&op, std::move(operands), std::move(attributes), "", {}}).value()->result();
  };
  const Value sum = insert(GetOp("add"), {insert(reversed, {x}), insert(odd_numbers, {})});
  ASSERT_TRUE(body.AddResult("y", insert(smallest, {sum}, {{"dims", std::vector<int64_t>{0}}})).ok());
  const absl::StatusOr<LoopPlan> plan = PlanLoop(body);
  ASSERT_TRUE(plan.ok()) << plan.status();
  EXPECT_EQ(ElementsOf(*plan, Element::Kind::kLoad).at(0).at, (Affine{3, {-1}}));
  EXPECT_EQ(ElementsOf(*plan, Element::Kind::kCount).at(0).at, (Affine{1, {2}}));
  ASSERT_EQ(plan->reductions.size(), 1U);
  EXPECT_EQ(plan->reductions[0].kind, ReduceKind::kMin);
}

}  // namespace
}  // namespace lockstep
