// The table of precisions has each op, and docs/precision.md shows the table.

#include "passes/training/precision_rules.h"

#include <fstream>
#include <sstream>

#include "gtest/gtest.h"

namespace lockstep::passes {
namespace {

TEST(PrecisionRules, EveryOpHasOne) {
  const std::vector<PrecisionEntry>& entries = AllPrecisionEntries();
  std::vector<const OpDef*> ops = AllOps();
  std::erase_if(ops, [](const OpDef* op) { return op->has_trait(kOptimizer); });
  for (size_t i = 0; i < std::min(entries.size(), ops.size()); ++i)
    ASSERT_EQ(entries[i].op, ops[i]->name()) << "entries are in the order of AllOps(): core/ops/op_list.h";
  ASSERT_EQ(entries.size(), ops.size()) << "an op has no entry in passes/training/precision_rules.cc";
}

TEST(PrecisionRules, WhatRoundsOnceIsNotFollowedByAnotherRule) {
  for (const OpDef* op : AllOps()) {
    if (op->FindAttribute("wide_result") != nullptr) {
      EXPECT_EQ(PrecisionRuleOf(*op), PrecisionRule::kLow) << op->name();
    }
    if (op->has_trait(kOptimizer)) {
      EXPECT_EQ(PrecisionRuleOf(*op), PrecisionRule::kFull) << op->name();
    }
  }
}

// A line for each rule that lists its ops: "| 16 bits | `matmul`, … |".
std::string LineOf(PrecisionRule rule) {
  std::string ops;
  for (const PrecisionEntry& entry : AllPrecisionEntries()) {
    if (entry.rule == rule) ops += (ops.empty() ? "`" : ", `") + std::string(entry.op) + "`";
  }
  return "| " + std::string(PrecisionRuleName(rule)) + " | " + ops + " |";
}

TEST(PrecisionRules, TheDocumentShowsThem) {
  std::ifstream file("docs/precision.md");
  ASSERT_TRUE(file.is_open()) << "docs/precision.md";
  std::stringstream text;
  text << file.rdbuf();
  for (const PrecisionRule rule : {PrecisionRule::kLow, PrecisionRule::kFull, PrecisionRule::kInside,
                                   PrecisionRule::kFollows, PrecisionRule::kWritten}) {
    EXPECT_NE(text.str().find(LineOf(rule) + "\n"), std::string::npos) << "docs/precision.md lacks the line\n"
                                                                       << LineOf(rule);
  }
}

}  // namespace
}  // namespace lockstep::passes
