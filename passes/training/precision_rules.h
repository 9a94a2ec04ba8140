// In which precision each op computes where a step is trained in mixed precision (precision.h): one table, after the
// lists of PyTorch's autocast. docs/precision.md shows it. Constant data; any thread.

#pragma once

#include <string_view>
#include <vector>

#include "core/op_def.h"

namespace lockstep::passes {

enum class PrecisionRule {
  kLow,      // operands and results of 16 bits
  kFull,     // operands and results of f32
  kInside,   // computes in f32; the first result has the precision of the first operand, the others are f32
  kFollows,  // the precision of the operands
  kWritten,  // results of the dtype that is written in the program
};

struct PrecisionEntry {
  std::string_view op;
  PrecisionRule rule;
};

// "16 bits", "f32", ...: the word that docs/precision.md has for it.
std::string_view PrecisionRuleName(PrecisionRule rule);

// An entry for each op but the optimizers, which are kFull, in the order of AllOps().
const std::vector<PrecisionEntry>& AllPrecisionEntries();

// An op without an entry is kFull; precision_rules_test.cc asks that there is none.
PrecisionRule PrecisionRuleOf(const OpDef& op);

}  // namespace lockstep::passes
