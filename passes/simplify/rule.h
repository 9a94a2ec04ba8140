// A rule of `simplify`, and the tables of rules. Constant data; any thread.

#pragma once

#include <string>
#include <vector>

#include "passes/simplify/notation.h"

namespace lockstep::passes {

// The elements for which a rule keeps every value: NaN, infinities, the sign of zero and rounding are why floats are
// apart.
enum class Numbers {
  kAll,
  kTruthValues,
  kIntegers,  // and truth values
  kFloats,
  kSigned,  // floats and signed integers
};

struct GlobalTypes {};

struct SimplifyRule {
  using Function = Value (*)(Node& node, Builder& b);

  // `pattern` becomes `replacement` for numbers of this kind (the dtype of the first operand), if `condition` holds.
  SimplifyRule(std::string name, Numbers numbers, Expr pattern, Expr replacement, Condition condition = nullptr);
  // Not in a local graph: there extents are those of what a rank holds, and say less, and a constant would be in the
  // place of a part of a value.
  SimplifyRule(std::string name, Numbers numbers, Expr pattern, Expr replacement, GlobalTypes,
               Condition condition = nullptr);
  // What the notation does not say: ops of any name, or of any number of operands. The function returns the value that
  // replaces the result of a node of `op`, or null if the rule does not apply: then it built nothing. `b` inserts
  // before the node.
  SimplifyRule(std::string name, const OpDef& op, Function function);
  SimplifyRule(std::string name, OpTrait trait, Function function);
  SimplifyRule(const SimplifyRule& other);
  SimplifyRule(SimplifyRule&& other) noexcept;
  SimplifyRule& operator=(const SimplifyRule& other);
  SimplifyRule& operator=(SimplifyRule&& other) noexcept;
  ~SimplifyRule();

  // Whether the rule may apply to nodes of `op`, in a local graph or in others.
  bool IsAbout(const OpDef& op, bool is_local) const;
  // Like Function.
  Value Apply(Node& node, Builder& b) const;

  std::string name;  // also of its golden case; the case in which it must not apply is <name>_stays
  bool global_types_only = false;

 private:
  Numbers numbers_ = Numbers::kAll;
  std::vector<Expr> pattern_, replacement_;  // one each, or none for a function
  Condition condition_;
  const OpDef* op_ = nullptr;  // null for a trait
  OpTrait trait_ = kElementwise;
  Function function_ = nullptr;
};

std::vector<SimplifyRule> ArithmeticRules();
std::vector<SimplifyRule> LogicRules();
std::vector<SimplifyRule> ShapeRules();
std::vector<SimplifyRule> BroadcastRules();
std::vector<SimplifyRule> ReductionRules();
std::vector<SimplifyRule> CollectiveRules();

// All of them.
const std::vector<SimplifyRule>& SimplifyRules();

// Those that may apply to nodes of `op`, in the order of the tables.
const std::vector<const SimplifyRule*>& SimplifyRulesFor(const OpDef& op);

}  // namespace lockstep::passes
