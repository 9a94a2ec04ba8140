#include "verify/tangent.h"

#include <unordered_set>
#include <utility>

#include "core/op_def.h"
#include "verify/axioms.h"
#include "verify/tangent_rule.h"

namespace lockstep::verify {
namespace {

using ValueSet = std::unordered_set<Value, ValueHash>;

const std::map<std::string_view, Rule>& Rules() {
  static const auto rules = [] {
    std::map<std::string_view, Rule> rows;
    for (auto part : {LinearRules(), ReductionRules(), RegionRules()}) rows.merge(part);
    return rows;
  }();
  return rules;
}

absl::Status Derive(Forward& f) {
  const OpDef& op = f.node.op();
  if (IsItsOperand(f.node)) {
    if (f.dx[0]) f.dy[0] = *f.dx[0];
    return absl::OkStatus();
  }
  if (op.has_trait(kSteps) || op.has_trait(kEndsGradients)) return absl::OkStatus();
  if (const auto rule = Rules().find(op.name()); rule != Rules().end()) return rule->second(f);
  if (op.has_trait(kMovement)) return Linear(f);
  if (op.decompose()) return ThroughDecomposition(f);
  return op.has_trait(kElementwise) ? BySlopes(f) : Unruled(f);
}

// The values that `of` are computed from, and `of`.
ValueSet Ancestors(const Graph& graph, const std::vector<Value>& of) {
  ValueSet ancestors(of.begin(), of.end());
  for (auto node = graph.nodes().rbegin(); node != graph.nodes().rend(); ++node) {
    bool is_one = false;
    for (size_t i = 0; i < node->num_results(); ++i)
      is_one = is_one || ancestors.contains(const_cast<Node&>(*node).result(i));
    if (is_one) ancestors.insert(node->operands().begin(), node->operands().end());
  }
  return ancestors;
}

absl::Status AddTangentsOf(const Node& const_node, const ExactValues& values, const ValueSet& ancestors,
                           Tangents& tangents, Assumptions& assumptions) {
  Node& node = const_cast<Node&>(const_node);
  Forward f{node, {}, {}, {}, {}, assumptions};
  bool moves = false, is_wanted = false;
  const Value origin = StandsFor(node);
  for (size_t i = 0; i < node.num_results(); ++i) {
    f.y.push_back(&values.at(node.result(i))[0]);
    f.is_wanted.push_back(IsFloat(node.type(i).dtype) && ancestors.contains(node.result(i)));
    is_wanted = is_wanted || f.is_wanted[i];
  }
  for (Value operand : node.operands()) {
    f.x.push_back(&values.at(operand)[0]);
    f.dx.push_back(Find(tangents, operand));
    moves = moves || f.dx.back();
  }
  if (origin && Find(tangents, origin)) f.dy[0] = *Find(tangents, origin);
  else if (is_wanted && moves) RETURN_IF_ERROR(Annotate(Derive(f), node.Describe()));
  for (size_t i = 0; i < f.dy.size(); ++i) {
    if (f.dy[i] && f.is_wanted[i]) tangents.emplace(node.result(i), std::move(*f.dy[i]));
  }
  return absl::OkStatus();
}

}  // namespace

const ExactTensor* Find(const Tangents& tangents, Value value) {
  const auto found = tangents.find(value);
  return found == tangents.end() ? nullptr : &found->second;
}

absl::StatusOr<Tangents> RunTangents(const Graph& graph, const ExactValues& values, const Tangents& directions,
                                     const std::vector<Value>& of, Assumptions& assumptions) {
  Tangents tangents = directions;
  const ValueSet ancestors = Ancestors(graph, of);
  for (const Node& node : graph.nodes()) RETURN_IF_ERROR(AddTangentsOf(node, values, ancestors, tangents, assumptions));
  return tangents;
}

}  // namespace lockstep::verify
