#include "passes/fuse_elementwise.h"

#include <algorithm>
#include <unordered_map>
#include <unordered_set>
#include <vector>

#include "core/op_def.h"
#include "passes/topological_order.h"

namespace lockstep::passes {
namespace {

bool IsReduction(const Node& node) {
  return node.Is("reduce_sum") || node.Is("reduce_max") || node.Is("reduce_min") || node.Is("reduce_prod");
}

bool IsFusible(const Node& node) { return node.op().has_trait(kElementwise) || IsReduction(node); }

// What is cheaper to compute again than to read from memory.
bool IsCopied(const Node& node) {
  if (node.Is("constant")) return node.attr<Tensor>("value").AllElementsEqual();
  return node.Is("broadcast") || node.Is("iota");
}

// The nodes of one fusion-to-be, and what those must have in common.
struct Group {
  std::vector<Node*> nodes;
  Shape domain;
  const Node* reduction = nullptr;  // one of those it holds
};

class Fuser {
 public:
  Fuser(Graph& graph, const FusionOptions& options) : graph_(graph), options_(options) {}

  absl::StatusOr<bool> Run() {
    // Users before producers, so that a node can join what consumes it.
    for (auto it = graph_.nodes().rbegin(); it != graph_.nodes().rend(); ++it) {
      if (IsFusible(*it)) Place(*it);
    }
    bool changed = false;
    for (Group& group : groups_) {
      ASSIGN_OR_RETURN(const bool fused, Fuse(group));
      changed |= fused;
    }
    if (changed) RepairOrder(graph_);
    return changed;
  }

 private:
  void Place(Node& node) {
    const Shape& domain = IsReduction(node) ? node.operand(0).shape() : node.type().shape;
    if (!IsReduction(node)) {
      for (const Node* user : node.users()) {
        const auto it = group_of_.find(user);
        if (it == group_of_.end() || !CanJoin(node, it->second)) continue;
        groups_[it->second].nodes.push_back(&node);
        group_of_[&node] = it->second;
        return;
      }
    }
    group_of_[&node] = groups_.size();
    groups_.push_back({{&node}, domain, IsReduction(node) ? &node : nullptr});
  }

  bool CanJoin(const Node& node, size_t group) const {
    if (groups_[group].domain != node.type().shape) return false;
    if (static_cast<int64_t>(groups_[group].nodes.size()) >= options_.max_nodes) return false;
    // A cycle would be a way from the node through a user outside of the group into the group.
    for (const Node* user : node.users()) {
      const auto it = group_of_.find(user);
      if ((it == group_of_.end() || it->second != group) && Reaches(user, group)) return false;
    }
    return true;
  }

  // Whether the group depends on `from`, all groups being one node each.
  bool Reaches(const Node* from, size_t group) const {
    std::unordered_set<const Node*> seen = {from};
    std::vector<const Node*> open = {from};
    const auto visit = [&](const Node* node) {
      if (seen.insert(node).second) open.push_back(node);
    };
    while (!open.empty()) {
      const Node* node = open.back();
      open.pop_back();
      const auto it = group_of_.find(node);
      if (it != group_of_.end()) {
        if (it->second == group) return true;
        for (const Node* member : groups_[it->second].nodes) visit(member);
      }
      for (const Node* user : node->users()) visit(user);
    }
    return false;
  }

  absl::StatusOr<bool> Fuse(Group& group);

  Graph& graph_;
  const FusionOptions options_;
  std::vector<Group> groups_;
  std::unordered_map<const Node*, size_t> group_of_;
};

// The body of a fusion, built from the nodes of a group and what is copied in.
class BodyBuilder {
 public:
  explicit BodyBuilder(const std::unordered_set<const Node*>& members) : body_("fused"), members_(members) {}

  // The value inside the body that stands for `outer`, which becomes an input unless it can be had otherwise.
  absl::StatusOr<Value> Inside(Value outer) {
    if (const auto it = inside_.find(outer); it != inside_.end()) return it->second;
    if (IsCopied(*outer.node)) {
      RETURN_IF_ERROR(Add(*outer.node));
      return inside_.at(outer);
    }
    LOCKSTEP_CHECK(!members_.contains(outer.node)) << outer.node->Describe();
    ASSIGN_OR_RETURN(const Value input, body_.AddInput(outer.name(), outer.type()));
    operands_.push_back(outer);
    return inside_[outer] = input;
  }

  absl::Status Add(Node& node) {
    NodeSpec spec{&node.op(), {}, node.attributes(), node.source(), {}};
    for (Value operand : node.operands()) {
      ASSIGN_OR_RETURN(const Value value, Inside(operand));
      spec.operands.push_back(value);
    }
    for (size_t i = 0; i < node.num_results(); ++i) spec.names.push_back(node.result_name(i));
    ASSIGN_OR_RETURN(Node* const clone, body_.Insert(std::move(spec)));
    for (size_t i = 0; i < node.num_results(); ++i) inside_[node.result(i)] = clone->result(i);
    return absl::OkStatus();
  }

  absl::Status AddResult(Value outer) { return body_.AddResult(outer.name(), inside_.at(outer)); }

  Graph TakeBody() { return std::move(body_); }
  const Graph& body() const { return body_; }
  const std::vector<Value>& operands() const { return operands_; }

 private:
  Graph body_;
  const std::unordered_set<const Node*>& members_;
  std::vector<Value> operands_;
  std::unordered_map<Value, Value, ValueHash> inside_;
};

absl::StatusOr<bool> Fuser::Fuse(Group& group) {
  std::reverse(group.nodes.begin(), group.nodes.end());  // producers first
  const std::unordered_set<const Node*> members(group.nodes.begin(), group.nodes.end());
  BodyBuilder builder(members);
  for (Node* node : group.nodes) RETURN_IF_ERROR(builder.Add(*node));
  if (builder.body().nodes().size() == 1) return false;  // nothing is gained

  std::vector<Value> results;
  for (Node* node : group.nodes) {
    const Value value = node->result();
    const bool used_outside = std::any_of(node->users().begin(), node->users().end(), [&](const Node* user) { return !members.contains(user); });
    const bool is_result = std::any_of(graph_.results().begin(), graph_.results().end(), [&](const Result& result) { return result.value == value; });
    if (!used_outside && !is_result) continue;
    RETURN_IF_ERROR(builder.AddResult(value));
    results.push_back(value);
  }
  if (results.empty()) return false;  // dead code
  std::vector<std::string> names;
  for (Value value : results) names.push_back(value.name());
  NodeSpec spec{&GetOp("fusion"), builder.operands(), {}, group.nodes.back()->source(), {}};
  spec.attributes.emplace("body", Region(builder.TakeBody()));
  ASSIGN_OR_RETURN(Node* const fusion, graph_.Insert(std::move(spec), group.nodes.back()));
  for (size_t i = 0; i < results.size(); ++i) graph_.ReplaceUses(results[i], fusion->result(i));
  for (auto it = group.nodes.rbegin(); it != group.nodes.rend(); ++it) graph_.Erase(*it);
  for (size_t i = 0; i < names.size(); ++i) graph_.SetName(fusion->result(i), names[i]);
  return true;
}

}  // namespace

Pass FuseElementwise(FusionOptions options) {
  return {"fuse-elementwise", [options](Graph& graph) { return Fuser(graph, options).Run(); }};
}

}  // namespace lockstep::passes
