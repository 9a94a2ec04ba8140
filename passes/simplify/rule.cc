#include "passes/simplify/rule.h"

#include <unordered_map>

namespace lockstep::passes {
namespace {

bool Includes(Numbers numbers, DType dtype) {
  switch (numbers) {
    case Numbers::kAll: return true;
    case Numbers::kTruthValues: return dtype == DType::kBool;
    case Numbers::kIntegers: return !IsFloat(dtype);
    case Numbers::kFloats: return IsFloat(dtype);
    case Numbers::kSigned: return IsSigned(dtype);
  }
  LOCKSTEP_CHECK(false) << "numbers " << static_cast<int>(numbers);
  return false;
}

}  // namespace

SimplifyRule::SimplifyRule(std::string name, Numbers numbers, Expr pattern, Expr replacement, Condition condition)
    : name(std::move(name)),
      numbers_(numbers),
      pattern_{std::move(pattern)},
      replacement_{std::move(replacement)},
      condition_(std::move(condition)),
      op_(&pattern_[0].op()) {}

SimplifyRule::SimplifyRule(std::string name, Numbers numbers, Expr pattern, Expr replacement, GlobalTypes,
                           Condition condition)
    : SimplifyRule(std::move(name), numbers, std::move(pattern), std::move(replacement), std::move(condition)) {
  global_types_only = true;
}

SimplifyRule::SimplifyRule(std::string name, const OpDef& op, Function function)
    : name(std::move(name)), op_(&op), function_(function) {}

SimplifyRule::SimplifyRule(std::string name, OpTrait trait, Function function)
    : name(std::move(name)), trait_(trait), function_(function) {}

SimplifyRule::SimplifyRule(const SimplifyRule& other) = default;
SimplifyRule::SimplifyRule(SimplifyRule&& other) noexcept = default;
SimplifyRule& SimplifyRule::operator=(const SimplifyRule& other) = default;
SimplifyRule& SimplifyRule::operator=(SimplifyRule&& other) noexcept = default;
SimplifyRule::~SimplifyRule() = default;

bool SimplifyRule::IsAbout(const OpDef& op, bool is_local) const {
  if (global_types_only && is_local) return false;
  return op_ ? op_ == &op : op.has_trait(trait_);
}

Value SimplifyRule::Apply(Node& node, Builder& b) const {
  if (function_) return function_(node, b);
  if (!Includes(numbers_, (node.operands().empty() ? node.result() : node.operand(0)).dtype())) return Value();
  const std::optional<Match> match = FindMatch(pattern_[0], condition_, node, b.graph());
  return match ? BuildReplacement(replacement_[0], *match, b) : Value();
}

const std::vector<SimplifyRule>& SimplifyRules() {
  static const std::vector<SimplifyRule> rules = [] {
    std::vector<SimplifyRule> all;
    for (const auto& table :
         {ArithmeticRules(), LogicRules(), ShapeRules(), BroadcastRules(), ReductionRules(), CollectiveRules()}) {
      all.insert(all.end(), table.begin(), table.end());
    }
    return all;
  }();
  return rules;
}

const std::vector<const SimplifyRule*>& SimplifyRulesFor(const OpDef& op) {
  static const auto* const by_op = [] {
    auto* rules_of = new std::unordered_map<const OpDef*, std::vector<const SimplifyRule*>>;
    for (const OpDef* op : AllOps()) {
      for (const SimplifyRule& rule : SimplifyRules()) {
        if (rule.IsAbout(*op, /*is_local=*/false)) (*rules_of)[op].push_back(&rule);
      }
    }
    return rules_of;
  }();
  static const std::vector<const SimplifyRule*> none;
  const auto rules = by_op->find(&op);
  return rules == by_op->end() ? none : rules->second;
}

}  // namespace lockstep::passes
