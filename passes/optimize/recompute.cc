#include "passes/optimize/recompute.h"

#include <algorithm>
#include <functional>
#include <map>
#include <optional>
#include <unordered_map>
#include <unordered_set>

#include "core/op_def.h"
#include "passes/optimize/fusion_groups.h"

namespace lockstep::passes {
namespace {

using Values = std::unordered_set<Value, ValueHash>;

bool IsCheap(const Node& node) {
  return node.op().has_trait(kElementwise) && !node.op().has_trait(kExpensive) && node.num_results() == 1;
}

bool IsReshape(const Node& node) { return node.op().is_mover() && node.op().has_trait(kKeepsOrder); }

int64_t BytesOf(Value value) { return value.type().num_bytes(); }

// The nodes that compute a value, in their order and without those that are copied into every body, and the values that
// they read.
struct Recipe {
  std::vector<Node*> nodes;
  std::vector<Value> leaves;
};

class Recomputation {
 public:
  Recomputation(Graph& graph, std::vector<std::vector<Node*>>& groups, const FusionOptions& options)
      : graph_(graph), groups_(groups), options_(options), members_(groups.size()), copies_(groups.size()) {
    for (const Result& result : graph.results()) results_.insert(result.value);
    for (size_t i = 0; i < groups.size(); ++i) {
      members_[i].insert(groups[i].begin(), groups[i].end());
      for (const Node* node : groups[i]) group_of_[node] = i;
    }
  }

  absl::Status Run() {
    for (size_t i = 0; i < groups_.size(); ++i) {
      // Goes from the first node of a group, so that later nodes profit from operands that are recomputed already.
      const std::vector<Node*> nodes = groups_[i];
      for (Node* node : nodes) RETURN_IF_ERROR(Consider(i, *node));
      Sort(i);
      RemoveDead(i);
    }
    for (size_t i = 0; i < groups_.size(); ++i) Sort(i);
    return absl::OkStatus();
  }

 private:
  // Lets other groups recompute the result of `node`, which is in the group `from`, if they can and it saves bytes.
  absl::Status Consider(size_t from, Node& node) {
    const Value value = node.result();
    if (!IsCheap(node) || value.type().num_elements() < options_.min_shared_elements) return absl::OkStatus();
    if (!IsLiveOut(value, members_[from], results_)) return absl::OkStatus();
    const Recipe recipe = RecipeOf(from, node);
    bool by_all = !results_.contains(value);
    std::map<size_t, int64_t> bytes_to_read;  // the additional bytes that a group reads if it recomputes the value
    for (const Node* user : node.users()) {
      const auto group = group_of_.find(user);
      if (group != group_of_.end() && group->second == from) continue;
      if (group != group_of_.end() && bytes_to_read.contains(group->second)) continue;
      const auto bytes = group == group_of_.end() ? std::nullopt : BytesToRead(group->second, recipe, value);
      if (bytes) bytes_to_read[group->second] = *bytes;
      else by_all = false;
    }
    if (!CanStoreLeaves(from, recipe, by_all)) return absl::OkStatus();
    // If some groups need the stored value, the others recompute it only if they read few more bytes for that, such as
    // the vectors of a normalisation.
    if (!by_all) std::erase_if(bytes_to_read, [&](const auto& each) { return each.second > BytesOf(value) / 16; });
    int64_t saved = (by_all ? BytesOf(value) : 0) - BytesToStore(from, recipe);
    for (const auto& [group, bytes] : bytes_to_read) saved += BytesOf(value) - bytes;
    if (saved <= 0) return absl::OkStatus();
    for (const auto& [group, bytes] : bytes_to_read) RETURN_IF_ERROR(ComputeAgain(group, value, recipe));
    return absl::OkStatus();
  }

  bool IsStored(size_t from, Value leaf) const {
    return !members_[from].contains(leaf.node) || IsLiveOut(leaf, members_[from], results_);
  }

  int64_t BytesToStore(size_t from, const Recipe& recipe) const {
    int64_t bytes = 0;
    for (const Value leaf : recipe.leaves) bytes += IsStored(from, leaf) ? 0 : BytesOf(leaf);
    return bytes;
  }

  // Returns true if the group can have the leaves as additional results without exceeding max_results.
  bool CanStoreLeaves(size_t from, const Recipe& recipe, bool without_value) const {
    int64_t results = without_value ? -1 : 0;
    for (Node* node : groups_[from]) results += IsLiveOut(node->result(), members_[from], results_);
    for (const Value leaf : recipe.leaves) results += !IsStored(from, leaf);
    return results <= options_.max_results;
  }

  Recipe RecipeOf(size_t from, Node& node) const {
    Recipe recipe;
    std::unordered_set<const Node*> seen;
    Add(from, node, recipe, seen);
    return recipe;
  }

  void Add(size_t from, Node& node, Recipe& recipe, std::unordered_set<const Node*>& seen) const {
    if (!seen.insert(&node).second) return;
    for (Value operand : node.operands()) {
      operand = SourceOfCopies(operand);
      if (IsRematerializable(*operand.node)) continue;
      const bool is_inner = members_[from].contains(operand.node) && !IsLiveOut(operand, members_[from], results_);
      // Ops that move elements can only be at the entry of a loop.
      const bool is_entry = IsReshape(*operand.node) && !members_[from].contains(operand.node->operand(0).node) &&
                            !IsRematerializable(*operand.node->operand(0).node);
      if (is_inner && (IsCheap(*operand.node) || is_entry)) {
        Add(from, *operand.node, recipe, seen);
      } else if (std::find(recipe.leaves.begin(), recipe.leaves.end(), operand) == recipe.leaves.end()) {
        recipe.leaves.push_back(operand);
      }
    }
    recipe.nodes.push_back(&node);
  }

  // Returns the values that the group's loop reads, looking through copied nodes.
  Values OperandsOf(size_t group) const {
    Values operands;
    for (const Node* node : groups_[group]) {
      for (Value operand : node->operands()) {
        operand = SourceOfCopies(operand);
        if (!members_[group].contains(operand.node) && !IsRematerializable(*operand.node)) operands.insert(operand);
      }
    }
    return operands;
  }

  // Returns the additional bytes that the group reads if it recomputes the value. Returns nullopt if it cannot: a node
  // that moves the value's elements needs it in memory, and loops have limits.
  std::optional<int64_t> BytesToRead(size_t group, const Recipe& recipe, Value value) const {
    const std::vector<Node*>& nodes = groups_[group];
    const auto moves_value = [&](const Node* node) { return node->op().is_mover() && node->operand(0) == value; };
    if (std::any_of(nodes.begin(), nodes.end(), moves_value)) return std::nullopt;
    if (static_cast<int64_t>(nodes.size() + recipe.nodes.size()) > options_.max_nodes) return std::nullopt;
    Values operands = OperandsOf(group);
    int64_t bytes = 0;
    for (const Value leaf : recipe.leaves) bytes += operands.insert(leaf).second ? BytesOf(leaf) : 0;
    if (static_cast<int64_t>(operands.size()) > options_.max_operands) return std::nullopt;
    return bytes;
  }

  absl::Status ComputeAgain(size_t group, Value value, const Recipe& recipe) {
    auto& copies = copies_[group];
    std::vector<Node*> added;
    for (Node* node : recipe.nodes) {
      if (copies.contains(node->id())) continue;
      ValueMap map;
      for (Value operand : node->operands()) {
        const auto copied = copies.find(operand.node->id());
        map[operand] = copied == copies.end() ? operand : copied->second;
      }
      ASSIGN_OR_RETURN(Node* const copy, graph_.InsertCopy(*node, map, groups_[group].front()));
      copies[node->id()] = copy->result();
      added.push_back(copy);
      members_[group].insert(copy);
      group_of_[copy] = group;
    }
    for (Node* user : groups_[group]) {
      for (size_t i = 0; i < user->operands().size(); ++i) {
        if (user->operand(i) == value) graph_.SetOperand(user, i, copies.at(value.node->id()));
      }
    }
    groups_[group].insert(groups_[group].end(), added.begin(), added.end());
    return absl::OkStatus();
  }

  void RemoveDead(size_t group) {
    std::vector<Node*>& nodes = groups_[group];
    for (size_t i = nodes.size(); i-- > 0;) {
      if (graph_.IsUsed(nodes[i]->result())) continue;
      std::erase_if(copies_[group], [&](const auto& copy) { return copy.second.node == nodes[i]; });
      members_[group].erase(nodes[i]);
      group_of_.erase(nodes[i]);
      graph_.Erase(nodes[i]);
      nodes.erase(nodes.begin() + static_cast<std::ptrdiff_t>(i));
    }
  }

  // Sorts a group to which copies were added into the order of use.
  void Sort(size_t group) {
    if (copies_[group].empty()) return;
    std::vector<Node*> sorted;
    std::unordered_set<const Node*> seen;
    const std::function<void(Node*)> visit = [&](Node* node) {
      if (!members_[group].contains(node) || !seen.insert(node).second) return;
      for (const Value operand : node->operands()) visit(SourceOfCopies(operand).node);
      sorted.push_back(node);
    };
    for (Node* node : groups_[group]) visit(node);
    groups_[group] = std::move(sorted);
  }

  Graph& graph_;
  std::vector<std::vector<Node*>>& groups_;
  const FusionOptions& options_;
  Values results_;
  std::vector<std::unordered_set<const Node*>> members_;
  std::unordered_map<const Node*, size_t> group_of_;
  // For each group, the copies of nodes of other groups, by the ids of the original nodes, which may be erased.
  std::vector<std::unordered_map<int64_t, Value>> copies_;
};

}  // namespace

absl::Status RecomputeInLoops(Graph& graph, std::vector<std::vector<Node*>>& groups, const FusionOptions& options) {
  return Recomputation(graph, groups, options).Run();
}

}  // namespace lockstep::passes
