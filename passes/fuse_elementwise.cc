#include "passes/fuse_elementwise.h"

#include <set>
#include <unordered_map>
#include <unordered_set>

#include "core/op_def.h"
#include "passes/fusion_groups.h"

namespace lockstep::passes {
namespace {

using NodeSet = std::unordered_set<const Node*>;

// The body of a group, with the values of the graph that its inputs and results stand for.
class BodyBuilder {
 public:
  explicit BodyBuilder(const NodeSet& group) : group_(group) {}

  absl::Status Add(Node& node) {
    for (Value operand : node.operands()) RETURN_IF_ERROR(Enter(operand));
    return body_.InsertCopy(node, inner_).status();
  }
  absl::Status AddResult(Value value) {
    results_.push_back(value);
    return body_.AddResult(value.name(), inner_.at(value));
  }

  bool empty() const { return results_.empty(); }
  const std::vector<Value>& operands() const { return operands_; }
  const std::vector<Value>& results() const { return results_; }
  Graph TakeBody() { return std::move(body_); }

 private:
  // Brings a value into the body, if it is not there: as a copy, or as an input.
  absl::Status Enter(Value value) {
    if (inner_.contains(value)) return absl::OkStatus();
    if (!group_.contains(value.node) && IsCopiedIntoBodies(*value.node)) return Add(*value.node);
    ASSIGN_OR_RETURN(inner_[value], body_.AddInput(value.name(), value.type(), false, value.placements()));
    operands_.push_back(value);
    return absl::OkStatus();
  }

  const NodeSet& group_;
  Graph body_{"fused"};
  ValueMap inner_;
  std::vector<Value> operands_, results_;
};

// Erases a node of a group, after the originals of copied nodes that only the group has read.
void EraseWithCopies(Graph& graph, Node* node) {
  const std::vector<Node*> users = node->users();
  for (size_t i = 0; i < users.size(); ++i) EraseWithCopies(graph, users[i]);
  graph.Erase(node);
}

// Puts one fusion in the place of the group's first node, unless nobody needs it or the target cannot. The order of the graph is to be restored afterwards.
absl::StatusOr<bool> Fuse(Graph& graph, const std::vector<Node*>& nodes, const FusionOptions& options) {
  const NodeSet group(nodes.begin(), nodes.end());
  BodyBuilder body(group);
  for (Node* node : nodes) RETURN_IF_ERROR(body.Add(*node));
  std::vector<std::string> names;
  std::unordered_set<Value, ValueHash> graph_results;
  for (const Result& result : graph.results()) graph_results.insert(result.value);
  for (Node* node : nodes) {
    if (!LeavesGroup(node->result(), group, graph_results)) continue;
    RETURN_IF_ERROR(body.AddResult(node->result()));
    names.push_back(node->result_name(0));
  }
  if (body.empty()) return false;

  NodeSpec spec{&GetOp("fusion"), body.operands(), {}, nodes.back()->source(), {}};
  const std::vector<Value> results = body.results();
  for (Value result : results) spec.placements.push_back(result.placements());
  spec.attributes["body"] = Region(body.TakeBody());
  ASSIGN_OR_RETURN(Node * fusion, graph.Insert(std::move(spec), nodes.front()));
  if (options.supports && !options.supports(*fusion)) {
    graph.Erase(fusion);
    return false;
  }
  for (size_t i = 0; i < results.size(); ++i) graph.ReplaceUses(results[i], fusion->result(i));
  for (auto it = nodes.rbegin(); it != nodes.rend(); ++it) EraseWithCopies(graph, *it);
  for (size_t i = 0; i < names.size(); ++i) graph.SetName(fusion->result(i), names[i]);
  return true;
}

// Erases the originals of what was copied and has no other user.
void EraseCopied(Graph& graph) {
  for (auto it = graph.nodes().end(); it != graph.nodes().begin();) {
    Node& node = *--it;
    if (!IsCopiedIntoBodies(node) || graph.IsUsed(node.result())) continue;
    ++it;
    graph.Erase(&node);
  }
}

// Each node as early as its operands allow, else in the present order; collectives in the present order.
void RestoreOrder(Graph& graph) {
  std::unordered_map<const Node*, int64_t> position, waiting;
  std::unordered_map<const Node*, Node*> next_collective;
  Node* last_collective = nullptr;
  for (Node& node : graph.nodes()) {
    position[&node] = static_cast<int64_t>(position.size());
    for (Value operand : node.operands()) waiting[&node] += &operand.node->op() != &InputOp();
    if (!node.op().has_trait(kCollective)) continue;
    if (last_collective) {
      next_collective[last_collective] = &node;
      ++waiting[&node];
    }
    last_collective = &node;
  }
  std::set<std::pair<int64_t, Node*>> ready;  // positions are unique: the pointer decides nothing
  for (Node& node : graph.nodes()) {
    if (waiting[&node] == 0) ready.emplace(position[&node], &node);
  }
  size_t placed = 0;
  while (!ready.empty()) {
    Node* node = ready.extract(ready.begin()).value().second;
    graph.MoveBefore(node, nullptr);
    ++placed;
    const auto release = [&](Node* user) {
      if (--waiting[user] == 0) ready.emplace(position[user], user);
    };
    for (Node* user : node->users()) release(user);
    if (const auto it = next_collective.find(node); it != next_collective.end()) release(it->second);
  }
  LOCKSTEP_CHECK(placed == position.size()) << "the fusions of graph @" << graph.name() << " depend on each other";
}

}  // namespace

Pass FuseElementwise(FusionOptions options) {
  return {"fuse-elementwise",
          [options](Graph& graph) -> absl::StatusOr<bool> {
            const std::vector<std::vector<Node*>> groups = FusionGroups(graph, options);
            bool changed = false;
            for (const std::vector<Node*>& group : groups) {
              ASSIGN_OR_RETURN(const bool fused, Fuse(graph, group, options));
              changed = changed || fused;
            }
            if (!changed) return false;
            EraseCopied(graph);
            RestoreOrder(graph);
            return true;
          },
          Keeps::kEveryValue};
}

}  // namespace lockstep::passes
