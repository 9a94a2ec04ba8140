#include "passes/distribute/form_reduce_scatters.h"

#include <algorithm>
#include <unordered_set>
#include <vector>

#include "core/op_def.h"
#include "core/ops/op_list.h"

namespace lockstep::passes {
namespace {

bool IsShard(const Node& node) { return &node.op() == &ShardOp(); }
bool IsGather(const Node& node) { return &node.op() == &AllGatherOp() && node.num_results() == 1; }

bool TakesTheSliceOf(const Node& shard, const Node& other) {
  return shard.attr<std::string>("axis") == other.attr<std::string>("axis") &&
         shard.attr<int64_t>("dim") == other.attr<int64_t>("dim");
}

// Returns the nodes that results depend on.
std::unordered_set<const Node*> LiveNodes(const Graph& graph) {
  std::unordered_set<const Node*> live;
  for (const Result& result : graph.results()) live.insert(result.value.node);
  for (auto it = graph.nodes().rbegin(); it != graph.nodes().rend(); ++it) {
    if (!live.contains(&*it)) continue;
    for (Value operand : it->operands()) live.insert(operand.node);
  }
  return live;
}

// Returns the shards of an all_reduce if only one slice of it is used, along its own axis; else returns none. Returns
// none for an all_reduce with a wire, since it rounds its result and a reduce_scatter does not, and for one that does
// not always communicate.
std::vector<Node*> ShardsOf(Node& reduced, const Graph& graph, const std::unordered_set<const Node*>& live) {
  const bool is_result = std::any_of(graph.results().begin(), graph.results().end(),
                                     [&](const Result& result) { return result.value.node == &reduced; });
  if (reduced.num_results() != 1 || is_result) return {};
  if (!reduced.attr<std::string>("wire").empty() || !reduced.attr<std::string>("when").empty()) return {};
  std::vector<Node*> shards;
  for (Node* user : reduced.users()) {
    if (!live.contains(user)) continue;
    if (!IsShard(*user) || user->attr<std::string>("axis") != reduced.attr<std::string>("axis")) return {};
    if (!shards.empty() && !TakesTheSliceOf(*user, *shards[0])) return {};
    shards.push_back(user);
  }
  return shards;
}

// Replaces the shards by a reduce_scatter. Removes the all_reduce unless dead nodes use it.
absl::Status ScatterInstead(Graph& graph, Node& reduced, const std::vector<Node*>& shards) {
  const std::string name = shards[0]->result_name();
  NodeSpec spec{&ReduceScatterOp(), reduced.operands(), shards[0]->attributes(), reduced.source(), {}};
  spec.attributes["kind"] = reduced.attr<std::string>("kind");
  spec.placements = {shards[0]->placements()};
  ASSIGN_OR_RETURN(Node* const scattered, graph.Insert(std::move(spec), &reduced));
  for (Node* shard : shards) {
    graph.ReplaceUses(shard->result(), scattered->result());
    graph.Erase(shard);
  }
  if (!graph.IsUsed(reduced.result())) graph.Erase(&reduced);
  graph.SetName(scattered->result(), name);
  return absl::OkStatus();
}

// Replaces the slice of a gathered value by the operand of the all_gather.
void TakeWhatWasGathered(Graph& graph, Node& shard) {
  Node* const gathered = shard.operand(0).node;
  graph.ReplaceUses(shard.result(), gathered->operand(0));
  graph.Erase(&shard);
  if (!graph.IsUsed(gathered->result())) graph.Erase(gathered);
}

absl::StatusOr<bool> Form(Graph& graph) {
  const std::unordered_set<const Node*> live = LiveNodes(graph);
  std::vector<Node*> shards_of_gathered, reduced;
  for (Node& node : graph.nodes()) {
    if (IsShard(node) && IsGather(*node.operand(0).node) && TakesTheSliceOf(node, *node.operand(0).node))
      shards_of_gathered.push_back(&node);
    if (node.op().collective() == CollectiveOp::kAllReduce) reduced.push_back(&node);
  }
  bool changed = !shards_of_gathered.empty();
  for (Node* shard : shards_of_gathered) TakeWhatWasGathered(graph, *shard);
  for (Node* node : reduced) {
    const std::vector<Node*> shards = ShardsOf(*node, graph, live);
    if (shards.empty()) continue;
    RETURN_IF_ERROR(ScatterInstead(graph, *node, shards));
    changed = true;
  }
  return changed;
}

}  // namespace

Pass FormReduceScatters() { return {"form-reduce-scatters", Form, Keeps::kEveryValue, /*needs_mesh=*/true}; }

}  // namespace lockstep::passes
