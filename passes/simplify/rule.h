// A rule of `simplify`, and the tables of rules. Constant data; any thread.

#pragma once

#include <string>
#include <vector>

#include "passes/simplify/notation.h"

namespace lockstep::passes {

// The dtypes for which a rule keeps every value. Floats are separate because of NaN, infinities, the sign of zero and
// rounding.
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

  // Replaces `pattern` by `replacement` if the dtype of the first operand is of this kind and `condition` holds.
  SimplifyRule(std::string name, Numbers numbers, Expr pattern, Expr replacement, Condition condition = nullptr);
  // The same, but does not apply in a local graph: extents there are those of a rank's part, which say less, and a
  // constant would replace a part of a value.
  SimplifyRule(std::string name, Numbers numbers, Expr pattern, Expr replacement, GlobalTypes,
               Condition condition = nullptr);
  // A rule that the notation cannot express: for any op with a trait, or any number of operands. The function returns
  // the value that replaces the result of a node of `op`. If the rule does not apply it returns null and builds
  // nothing. `b` inserts before the node.
  SimplifyRule(std::string name, const OpDef& op, Function function);
  SimplifyRule(std::string name, OpTrait trait, Function function);
  SimplifyRule(const SimplifyRule& other);
  SimplifyRule(SimplifyRule&& other) noexcept;
  SimplifyRule& operator=(const SimplifyRule& other);
  SimplifyRule& operator=(SimplifyRule&& other) noexcept;
  ~SimplifyRule();

  // Returns true if the rule may apply to nodes of `op`, in a graph that is local if `is_local`.
  bool IsAbout(const OpDef& op, bool is_local) const;
  // Applies the rule at `node`. Same contract as Function.
  Value Apply(Node& node, Builder& b) const;

  std::string name;  // also the name of its golden case; <name>_stays is the case in which it must not apply
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

// Returns the rules of all tables, in order.
const std::vector<SimplifyRule>& SimplifyRules();

// Returns the rules that may apply to nodes of `op`, in the order of the tables.
const std::vector<const SimplifyRule*>& SimplifyRulesFor(const OpDef& op);

}  // namespace lockstep::passes
