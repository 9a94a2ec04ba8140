// Tests each property of the notation of rules at one node: the last one of a graph.

#include "passes/simplify/notation.h"

#include <gtest/gtest.h>

#include "core/printer.h"
#include "core/verifier.h"
#include "passes/simplify/letters.h"
#include "passes/simplify/rule.h"

namespace lockstep::passes {
namespace {

// Returns a graph with inputs a, b and constants two, three, all of `type`, with these nodes and the result %r.
Graph MakeGraph(const std::string& nodes, const std::string& type = "f32[4]") {
  const std::string dtype = type.substr(0, type.find('['));
  std::string text = "graph @g(%a: " + type + ", %b: " + type + ") -> (r: " + type + ") {\n";
  for (const auto& [name, number] : {std::pair("two", "2"), std::pair("three", "3")}) {
    const std::string value = IsFloat(*DTypeFromName(dtype)) ? std::string(number) + ".0" : number;
    text += "  %s" + std::string(name) + " = constant {value=dense<" + dtype + "[]: " + value + ">} : " + dtype +
            "[]\n  %" + name + " = broadcast %s" + name + " {dims=[], shape=" + type.substr(type.find('[')) +
            "} : " + type + "\n";
  }
  absl::StatusOr<Graph> graph = ParseGraph(text + nodes + "  return %r\n}\n");
  EXPECT_TRUE(graph.ok()) << graph.status();
  return *std::move(graph);
}

Node& Last(Graph& graph) { return graph.nodes().back(); }

bool Matches(const Expr& pattern, Graph graph, const Condition& condition = nullptr) {
  return FindMatch(pattern, condition, Last(graph), graph).has_value();
}

// Returns the replacement of %r as text: "add %a %two", a constant as its number; "nothing" if the rule does not apply.
std::string Rewritten(const SimplifyRule& rule, Graph graph) {
  const size_t before = graph.nodes().size();
  Node& node = Last(graph);
  Builder b(graph, &node);
  const Value value = rule.Apply(node, b);
  EXPECT_TRUE(b.status().ok()) << b.status();
  if (!value) {
    EXPECT_EQ(graph.nodes().size(), before);
    return "nothing";
  }
  EXPECT_EQ(value.type(), node.type());
  graph.ReplaceUses(node.result(), value);
  EXPECT_TRUE(Verify(graph).ok());
  std::string text = value.node->op_name();
  for (Value operand : value.node->operands()) {
    const bool is_splat = operand.node->op_name() == "broadcast";
    text += " " + (is_splat ? DoubleToString(operand.node->operand(0).node->attr<Tensor>("value").At(0))
                            : "%" + operand.name());
  }
  return text;
}

TEST(Notation, TheSameLetterIsTheSameValue) {
  EXPECT_TRUE(Matches(x - x, MakeGraph("  %r = sub %a, %a : f32[4]\n")));
  EXPECT_FALSE(Matches(x - x, MakeGraph("  %r = sub %a, %b : f32[4]\n")));
  EXPECT_TRUE(Matches(x - y, MakeGraph("  %r = sub %a, %a : f32[4]\n")));
}

TEST(Notation, TheSameSplatHasTheSameBits) {
  const std::string same = "  %t = sub %a, %two : f32[4]\n  %r = sub %t, %two : f32[4]\n";
  const std::string other = "  %t = sub %a, %two : f32[4]\n  %r = sub %t, %three : f32[4]\n";
  EXPECT_TRUE(Matches((x - c0) - c0, MakeGraph(same)));
  EXPECT_FALSE(Matches((x - c0) - c0, MakeGraph(other)));
  EXPECT_TRUE(Matches((x - c0) - c1, MakeGraph(other)));
  EXPECT_FALSE(Matches(x - c0, MakeGraph("  %r = sub %a, %b : f32[4]\n")));
}

TEST(Notation, TheSameAttributeLetterHasTheSameBits) {
  const auto twice = [](const char* first, const char* second) {
    return MakeGraph(std::string("  %t = transpose %a {permutation=") + first +
                         "} : f32[2,2,2]\n  %r = transpose %t {permutation=" + second + "} : f32[2,2,2]\n",
                     "f32[2,2,2]");
  };
  EXPECT_TRUE(Matches(Transpose(Transpose(x, p), p), twice("[1, 0, 2]", "[1, 0, 2]")));
  EXPECT_FALSE(Matches(Transpose(Transpose(x, p), p), twice("[1, 0, 2]", "[0, 2, 1]")));
  EXPECT_TRUE(Matches(Transpose(Transpose(x, p), q), twice("[1, 0, 2]", "[0, 2, 1]")));
  EXPECT_FALSE(Matches(Transpose(x, Ints{0, 1, 2}), twice("[1, 0, 2]", "[0, 2, 1]")));
  EXPECT_TRUE(Matches(Transpose(x, Ints{0, 2, 1}), twice("[1, 0, 2]", "[0, 2, 1]")));
}

TEST(Notation, CommutativeOpsMatchInEitherOrder) {
  EXPECT_TRUE(Matches(x + 2, MakeGraph("  %r = add %two, %a : f32[4]\n")));
  EXPECT_TRUE(Matches(x + 2, MakeGraph("  %r = add %a, %two : f32[4]\n")));
  EXPECT_TRUE(Matches(x - 2, MakeGraph("  %r = sub %a, %two : f32[4]\n")));
  EXPECT_FALSE(Matches(x - 2, MakeGraph("  %r = sub %two, %a : f32[4]\n")));
  // Each op has its own order.
  EXPECT_TRUE(Matches((x * 3) + 2, MakeGraph("  %t = mul %three, %a : f32[4]\n  %r = add %two, %t : f32[4]\n")));
  EXPECT_TRUE(Matches((x * 3) + 2, MakeGraph("  %t = mul %a, %three : f32[4]\n  %r = add %two, %t : f32[4]\n")));
}

// The other order is tried if the condition does not hold for the first.
TEST(Notation, TheConditionChoosesTheOrder) {
  const Condition second_is_three = [](const Match& m) { return m[c1].At(0) == 3; };
  EXPECT_TRUE(Matches(c0 + c1, MakeGraph("  %r = add %three, %two : f32[4]\n"), second_is_three));
  EXPECT_FALSE(Matches(c0 + c1, MakeGraph("  %r = add %two, %two : f32[4]\n"), second_is_three));
}

TEST(Notation, NumbersHaveASign) {
  const std::string zero =
      "  %s = constant {value=dense<f32[]: -0.0>} : f32[]\n  %z = broadcast %s {dims=[], shape=[4]} : f32[4]\n"
      "  %r = add %a, %z : f32[4]\n";
  EXPECT_TRUE(Matches(x + -0.0, MakeGraph(zero)));
  EXPECT_FALSE(Matches(x + 0, MakeGraph(zero)));
}

TEST(Notation, OnlyIsOfWhatNobodyElseUses) {
  const std::string product = "  %t = mul %a, %two : f32[4]\n";
  EXPECT_TRUE(Matches(-Only(x * c0), MakeGraph(product + "  %r = neg %t : f32[4]\n")));
  EXPECT_FALSE(Matches(
      -Only(x * c0), MakeGraph(product + "  %u = exp %t : f32[4]\n  %v = exp %u : f32[4]\n  %r = neg %t : f32[4]\n")));
  EXPECT_FALSE(Matches(Only(x * c0) - y, MakeGraph(product + "  %r = sub %t, %t : f32[4]\n")));
}

TEST(Notation, AsNamesWhatItMatched) {
  Graph graph = MakeGraph("  %t = relu %a : f32[4]\n  %r = relu %t : f32[4]\n");
  const std::optional<Match> match = FindMatch(Relu(As(y, Relu(x))), nullptr, Last(graph), graph);
  ASSERT_TRUE(match.has_value());
  EXPECT_EQ((*match)[y].name(), "t");
  EXPECT_EQ((*match)[x].name(), "a");
}

TEST(Notation, ReplacementsAreOfTheirNumbersAlone) {
  const std::string nodes = "  %t = mul %a, %two : ";
  const auto product = [&](const std::string& type) {
    return MakeGraph(nodes + type + "\n  %r = mul %t, %three : " + type + "\n", type);
  };
  const SimplifyRule integers("rule", Numbers::kIntegers, (x * c0) * c1, x * Fold(c0 * c1));
  const SimplifyRule floats("rule", Numbers::kFloats, (x * c0) * c1, x * Fold(c0 * c1));
  const SimplifyRule signed_numbers("rule", Numbers::kSigned, (x * c0) * c1, x * Fold(c0 * c1));
  EXPECT_EQ(Rewritten(integers, product("i32[4]")), "mul %a 6.0");
  EXPECT_EQ(Rewritten(integers, product("f32[4]")), "nothing");
  EXPECT_EQ(Rewritten(floats, product("bf16[4]")), "mul %a 6.0");
  EXPECT_EQ(Rewritten(floats, product("u8[4]")), "nothing");
  EXPECT_EQ(Rewritten(signed_numbers, product("u8[4]")), "nothing");
  EXPECT_EQ(Rewritten(signed_numbers, product("i8[4]")), "mul %a 6.0");
}

// Folding wraps around in the dtype, as the op does.
TEST(Notation, FoldsAsTheOpWould) {
  const SimplifyRule rule("rule", Numbers::kAll, x * c0, x * Fold(c0 * (c0 * 50)));
  EXPECT_EQ(Rewritten(rule, MakeGraph("  %r = mul %a, %two : u8[4]\n", "u8[4]")), "mul %a 200.0");
  EXPECT_EQ(Rewritten(rule, MakeGraph("  %r = mul %a, %two : i8[4]\n", "i8[4]")), "mul %a -56.0");
  EXPECT_EQ(Rewritten(rule, MakeGraph("  %r = mul %a, %three : u8[4]\n", "u8[4]")), "mul %a 194.0");
  EXPECT_EQ(Rewritten(rule, MakeGraph("  %r = mul %a, %two : f32[4]\n")), "mul %a 200.0");
}

TEST(Notation, WhatCannotBeFoldedIsNotReplaced) {
  const SimplifyRule rule("rule", Numbers::kAll, x / c0, x * Fold(c0 / 0));
  EXPECT_EQ(Rewritten(rule, MakeGraph("  %r = div %a, %two : i32[4]\n", "i32[4]")), "nothing");
  EXPECT_EQ(Rewritten(rule, MakeGraph("  %r = div %a, %two : f32[4]\n")), "mul %a inf");
}

TEST(Notation, AFalseConditionBuildsNothing) {
  const Condition is_three = [](const Match& m) { return m[c0].At(0) == 3; };
  const SimplifyRule rule("rule", Numbers::kAll, x * c0, -x, is_three);
  EXPECT_EQ(Rewritten(rule, MakeGraph("  %r = mul %a, %two : f32[4]\n")), "nothing");
  EXPECT_EQ(Rewritten(rule, MakeGraph("  %r = mul %a, %three : f32[4]\n")), "neg %a");
}

TEST(NotationDeathTest, APatternNamesAllAttributes) {
  EXPECT_DEATH(Expr(GetOp("transpose"), {x}), "transpose has other attributes");
}

}  // namespace
}  // namespace lockstep::passes
