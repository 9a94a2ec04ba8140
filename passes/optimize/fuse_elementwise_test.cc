// Tests fusion with ops that are defined here: it relies on the traits of an op, not on its name. Other tests are in
// test/golden/.

#include "passes/optimize/fuse_elementwise.h"

#include "core/op_def.h"
#include "gtest/gtest.h"

namespace lockstep {
namespace {

IndexMap Downwards(const IndexContext& c) { return {Affine::Index(1, 0, -1, c.operand()[0] - 1)}; }

OpDef Reversed() {
  return OpDef("reversed").Operand("x").MovesFrom(Downwards).Infer([](InferContext& c) {
    return c.SetResult(c.operand(0));
  });
}

Value Insert(Graph& graph, const OpDef& op, std::vector<Value> operands) {
  return graph.Insert({&op, std::move(operands), {}, "", {}}).value()->result();
}

std::vector<std::string> OpNames(const Graph& graph) {
  std::vector<std::string> names;
  for (const Node& node : graph.nodes()) names.push_back(node.op_name());
  return names;
}

using Names = std::vector<std::string>;

TEST(FuseElementwise, AMoverIsTakenIntoTheLoopThatReadsIt) {
  const OpDef reversed = Reversed();
  Graph graph("f");
  const Value x = graph.AddInput("x", TensorType{DType::kF32, {8}}).value();
  const Value sum = Insert(graph, GetOp("add"), {Insert(graph, reversed, {x}), x});
  ASSERT_TRUE(graph.AddResult("y", sum).ok());
  const absl::StatusOr<bool> changed = passes::FuseElementwise().run(graph);
  ASSERT_TRUE(changed.ok()) << changed.status();
  ASSERT_EQ(OpNames(graph), Names{"fusion"});
  EXPECT_EQ(OpNames(graph.nodes().front().attr<Region>("body").graph()), (Names{"reversed", "add"}));
}

// The second loop reads the elements of the first in reverse, so no single loop has both in one order.
TEST(FuseElementwise, AMoverDoesNotStandBetweenNodesOfOneLoop) {
  const OpDef reversed = Reversed();
  Graph graph("f");
  const Value x = graph.AddInput("x", TensorType{DType::kF32, {8}}).value();
  const Value moved = Insert(graph, reversed, {Insert(graph, GetOp("exp"), {x})});
  ASSERT_TRUE(graph.AddResult("y", Insert(graph, GetOp("add"), {moved, x})).ok());
  const absl::StatusOr<bool> changed = passes::FuseElementwise().run(graph);
  ASSERT_TRUE(changed.ok()) << changed.status();
  EXPECT_EQ(OpNames(graph), (Names{"exp", "fusion"}));
}

TEST(FuseElementwise, AGeneratorIsCopiedIntoEveryBody) {
  const OpDef odd_numbers = OpDef("odd_numbers")
                                .Counts([](const IndexContext&) { return Affine::Index(1, 0, 2, 1); })
                                .Trait(kRematerialised)
                                .Infer([](InferContext& c) { return c.SetResult(DType::kF32, Shape({8})); });
  Graph graph("f");
  const Value x = graph.AddInput("x", TensorType{DType::kF32, {8}}).value();
  const Value odd = Insert(graph, odd_numbers, {});
  ASSERT_TRUE(graph.AddResult("y", Insert(graph, GetOp("add"), {x, odd})).ok());
  ASSERT_TRUE(passes::FuseElementwise().run(graph).ok());
  ASSERT_EQ(OpNames(graph).back(), "fusion");
  EXPECT_EQ(graph.nodes().back().operands().size(), 1U);
}

}  // namespace
}  // namespace lockstep
