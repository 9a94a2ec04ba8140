// Tests sums of products with a wide result for which a target has no kernel. The golden cases test decompositions.

#include "passes/legalize/legalize.h"

#include "core/printer.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"

namespace lockstep::passes {
namespace {

using testing::HasSubstr;

// Returns the text after a target without kernels for wide results is given the sum.
std::string Legalized(bool rounds) {
  Graph graph = ParseGraph(R"(graph @f(%x: bf16[2,3], %y: bf16[3,4]) -> (z: f32[2,4]) {
    %z = matmul %x, %y {wide_result=true} : f32[2,4]
    return %z
  })")
                    .value();
  const auto supports = [](const Node& node) {
    return !node.Is("matmul") || node.type().dtype == node.operand(0).dtype();
  };
  const auto changed = Legalize(supports, [rounds](const Node&) { return rounds; }).run(graph);
  EXPECT_TRUE(changed.ok() && *changed) << changed.status();
  return graph.ToString();
}

TEST(Legalize, AWideSumIsRoundedAndKeepsItsName) {
  EXPECT_THAT(Legalized(true),
              HasSubstr("  %0 = matmul %x, %y : bf16[2,4]\n  %z = convert %0 {dtype=f32} : f32[2,4]\n"));
}

TEST(Legalize, AWideSumIsOneOfWideOperandsAndKeepsItsName) {
  EXPECT_THAT(Legalized(false),
              AllOf(HasSubstr("= convert %x {dtype=f32} : f32[2,3]\n"),
                    HasSubstr("= convert %y {dtype=f32} : f32[3,4]\n"), HasSubstr(" : f32[2,4]\n  return %z\n")));
}

}  // namespace
}  // namespace lockstep::passes
