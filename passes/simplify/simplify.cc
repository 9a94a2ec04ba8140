#include "passes/simplify/simplify.h"

#include <algorithm>

#include "core/op_def.h"
#include "core/placement_rules.h"
#include "passes/bodies.h"

namespace lockstep::passes {
namespace {

// The limit of sweeps. Every rule makes the program smaller or more canonical, so a chain of rewrites is about as long
// as the program is deep.
constexpr int kMaxSweeps = 200;

bool IsUsed(const Graph& graph, Node* node) {
  for (size_t i = 0; i < node->num_results(); ++i) {
    if (graph.IsUsed(node->result(i))) return true;
  }
  return false;
}

// Erases `node` and the operands that are then unused, except collectives.
void EraseWithOperands(Graph& graph, Node* node) {
  std::vector<Node*> open = {node};
  while (!open.empty()) {
    Node* const dead = open.back();
    open.pop_back();
    const std::vector<Value> operands = dead->operands();
    graph.Erase(dead);
    for (const Value value : operands) {
      Node* const operand = value.node;
      // Each node is added once, even if it is an operand twice.
      if (operand->is_input() || IsUsed(graph, operand)) continue;
      if (operand->op().has_trait(kCollective)) continue;
      if (std::find(open.begin(), open.end(), operand) == open.end()) open.push_back(operand);
    }
  }
}

// Replaces the node's result by `value`. If the rule built `value`, it takes over the name.
void Replace(Graph& graph, Node* node, Value value, bool is_new) {
  const std::string name = node->result_name(0);
  graph.ReplaceUses(node->result(), value);
  EraseWithOperands(graph, node);
  if (is_new) graph.SetName(value, name);
}

// Applies the first rule that fits and returns it; returns null if none fits.
absl::StatusOr<const SimplifyRule*> SimplifyNode(Graph& graph, std::list<Node>::iterator node) {
  for (const SimplifyRule* const candidate : SimplifyRulesFor(node->op())) {
    const SimplifyRule& rule = *candidate;
    if (!rule.IsAbout(node->op(), graph.is_local())) continue;
    const size_t count = graph.nodes().size();
    Builder builder(graph, &*node, node->source());
    absl::StatusOr<Value> value = rule.Apply(*node, builder);
    absl::Status status = Annotate(builder.status(), "rule " + rule.name + " at " + node->Describe());
    if (status.ok() && *value && value->type() != node->type())
      return Internal() << "rule " << rule.name << " at " << node->Describe() << " makes " << value->type()
                        << ", expected " << node->type();
    if (status.ok() && *value) {
      value = PlacedLike(graph, *value, node->placements(), &*node);
      status = value.status();
    }
    const size_t built = graph.nodes().size() - count;
    if (!status.ok() && graph.is_placed()) {
      // The rule does not apply if its value would need another placement, such as a zero instead of a partial sum.
      for (size_t i = 0; i < built; ++i) graph.Erase(&*std::prev(node));
      continue;
    }
    RETURN_IF_ERROR(status);
    if (!*value) {
      LOCKSTEP_CHECK(built == 0) << rule.name << " built something and then did not apply";
      continue;
    }
    bool is_new = false;
    for (auto it = std::prev(node, static_cast<std::ptrdiff_t>(built)); it != node; ++it)
      is_new = is_new || &*it == value->node;
    Replace(graph, &*node, *value, is_new);
    return &rule;
  }
  return nullptr;
}

}  // namespace

absl::StatusOr<bool> SimplifyGraph(Graph& graph, const std::function<void(const SimplifyRule&)>& on_rule) {
  ASSIGN_OR_RETURN(bool changed, InBodies(graph, [&](Graph& body) { return SimplifyGraph(body, on_rule); }));
  for (int sweep = 0; sweep < kMaxSweeps; ++sweep) {
    const SimplifyRule* last = nullptr;
    for (auto it = graph.nodes().begin(); it != graph.nodes().end();) {
      const auto node = it++;  // a rule erases only nodes before `it`
      if (node->num_results() != 1) continue;
      ASSIGN_OR_RETURN(const SimplifyRule* rule, SimplifyNode(graph, node));
      if (!rule) continue;
      if (on_rule) on_rule(*rule);
      last = rule;
      changed = true;
    }
    if (!last) return changed;
    if (sweep == kMaxSweeps - 1) {
      return Internal() << "the rules still apply after " << kMaxSweeps << " sweeps, the last was " << last->name;
    }
  }
  return changed;
}

Pass Simplify() {
  return {"simplify", [](Graph& graph) { return SimplifyGraph(graph); }, Keeps::kEveryValue};
}

}  // namespace lockstep::passes
