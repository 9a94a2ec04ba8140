// Each law is relied on by a pass, and reported. Without it, the comparison of a right program fails.

#include "verify/axioms.h"

#include <string>
#include <vector>

#include "core/printer.h"
#include "gtest/gtest.h"
#include "passes/distribute/distribute.h"
#include "passes/distribute/quantize_wire.h"
#include "passes/distribute/wire.h"
#include "passes/optimize/one_pass_statistics.h"
#include "passes/simplify/simplify.h"
#include "verify/compare_programs.h"

namespace lockstep::verify {
namespace {

struct LawCase {
  std::string law;
  std::vector<passes::Pass> passes;
  const char* graph;
};

std::vector<LawCase> LawCases() {
  return {
      {"a mean of squares is at least the square of the mean", {passes::OnePassStatistics(/*fast_f64=*/true)}, R"(
graph @f(%x: f32[4,8], %scale: f32[8], %bias: f32[8]) -> (y: f32[4,8]) {
  %y, %mean, %variance = batch_norm_training %x, %scale, %bias {epsilon=1e-05} : f32[4,8], f32[8], f32[8]
  return %y
}
)"},
      {"codes of the int8 wire lose nothing",
       {passes::Distribute(Mesh({{"data", 2}})), passes::ChooseWire("int8"), passes::QuantizeWire()},
       R"(
graph @step(%x: f32[8,6] split(0), %dz: f32[8,4] split(0), state %w: f32[6,4]) -> (%w: f32[6,4]) {
  %grad/w = matmul %x, %dz {transpose_a=true} : f32[6,4]
  %w1 = sgd %w, %grad/w {learning_rate=0.1} : f32[6,4]
  return %w1
}
)"},
      {"the bits of a float matter only when they become that float again", {passes::Simplify()}, R"(
graph @f(%x: f32[4]) -> (y: f32[4]) {
  %bits = bitcast %x {dtype=u32} : u32[4]
  %held = bitcast %bits {dtype=f32} : f32[4]
  %y = neg %held : f32[4]
  return %y
}
)"},
  };
}

TEST(Axioms, AreReliedOnAndReported) {
  for (const LawCase& each : LawCases()) {
    const auto graph = ParseGraph(each.graph);
    ASSERT_TRUE(graph.ok()) << graph.status();
    Graph passed = graph->Clone();
    Assumptions assumptions;
    const absl::Status status = RunPassesChecked(each.passes, passed, {}, 1, &assumptions);
    EXPECT_TRUE(status.ok()) << each.law << ": " << status;
    EXPECT_TRUE(assumptions.contains(each.law)) << each.law;
    EXPECT_NE(passed.ToString(), graph->ToString()) << each.law;
  }
}

// A pattern that differs a little is no law.
TEST(Axioms, HoldForTheirPatternsAlone) {
  const auto is_its_operand = [](const std::string& nodes) {
    const std::string constants =
        "  %zero = constant {value=dense<f32[]: 0>} : f32[]\n  %one = constant {value=dense<f32[]: 1>} : f32[]\n";
    const auto graph = ParseGraph("graph @f(%s: f32[], %m: f32[], %other: f32[]) -> (y: f32[]) {\n" + constants +
                                  nodes + "  return %y\n}\n");
    LOCKSTEP_CHECK(graph.ok()) << graph.status();
    return IsItsOperand(*graph->results()[0].value.node);
  };
  const std::string square = "  %q = mul %m, %m : f32[]\n", other = "  %q = mul %m, %s : f32[]\n",
                    difference = "  %v = sub %s, %q : f32[]\n", sum = "  %v = add %s, %q : f32[]\n",
                    clamp = "  %y = max %v, %zero : f32[]\n";
  EXPECT_TRUE(is_its_operand(square + difference + clamp));
  EXPECT_FALSE(is_its_operand(other + difference + clamp));
  EXPECT_FALSE(is_its_operand(square + sum + clamp));
  EXPECT_FALSE(is_its_operand(square + difference + "  %y = max %v, %one : f32[]\n"));
  EXPECT_FALSE(is_its_operand(square + difference + "  %y = max %v, %other : f32[]\n"));
  EXPECT_FALSE(is_its_operand(square + difference + "  %y = min %v, %zero : f32[]\n"));
}

}  // namespace
}  // namespace lockstep::verify
