#include "passes/distribute/merge_all_reduces.h"

#include <algorithm>
#include <map>
#include <optional>
#include <tuple>
#include <unordered_map>
#include <vector>

#include "core/local_types.h"
#include "core/op_def.h"
#include "passes/topological_order.h"

namespace lockstep::passes {
namespace {

// What must agree within a bucket. `depth` is the number of all-reduces on the longest path before this one; those of
// equal depth do not need each other. All-reduces that no other one needs may be merged with each other at any depth:
// they share the depth kFinal.
using BucketKey = std::tuple<std::string, std::string, std::string, DType, int64_t>;  // axis, kind, wire, dtype, depth
constexpr int64_t kFinal = -1;

bool IsAllReduce(const Node& node) { return node.op().collective() == CollectiveOp::kAllReduce; }

struct Bucket {
  std::vector<Node*> nodes;
  int64_t bytes = 0;
};

std::unordered_map<const Node*, int64_t> AllReduceDepths(const Graph& graph) {
  std::unordered_map<const Node*, int64_t> depth;  // of the all-reduces before or at a node
  for (const Node& node : graph.nodes()) {
    int64_t& own = depth[&node];
    for (Value operand : node.operands()) {
      const auto it = depth.find(operand.node);
      if (it != depth.end()) own = std::max(own, it->second + (IsAllReduce(*operand.node) ? 1 : 0));
    }
  }
  return depth;
}

// The nodes from which an all-reduce can be reached.
std::unordered_map<const Node*, bool> ReachesAllReduce(Graph& graph) {
  std::unordered_map<const Node*, bool> reaches;
  for (auto it = graph.nodes().rbegin(); it != graph.nodes().rend(); ++it) {
    bool& own = reaches[&*it];
    for (const Node* user : it->users()) own = own || IsAllReduce(*user) || reaches[user];
  }
  return reaches;
}

// Of what a rank holds.
int64_t Bytes(const Graph& graph, const Node& node) {
  int64_t bytes = 0;
  for (size_t i = 0; i < node.num_results(); ++i) {
    const TensorType& type = node.type(i);
    const TensorType local = graph.is_local() ? type : LocalType(type, node.placements(i), graph.mesh());
    bytes += static_cast<int64_t>(local.num_bytes());
  }
  return bytes;
}

std::vector<Bucket> FillBuckets(Graph& graph, const MergeOptions& options) {
  const auto depths = AllReduceDepths(graph);
  auto reaches = ReachesAllReduce(graph);
  std::unordered_map<const Node*, int64_t> position;
  std::vector<std::pair<int64_t, Node*>> by_readiness;
  for (Node& node : graph.nodes()) {
    position.emplace(&node, static_cast<int64_t>(position.size()));
    if (!IsAllReduce(node) || node.attr<int64_t>("bucket") >= 0) continue;
    int64_t ready = -1;
    for (Value operand : node.operands()) {
      const auto it = position.find(operand.node);  // an input has no position: it is ready at once
      if (it != position.end()) ready = std::max(ready, it->second);
    }
    by_readiness.emplace_back(ready, &node);
  }
  std::stable_sort(by_readiness.begin(), by_readiness.end(),
                   [](const auto& a, const auto& b) { return a.first < b.first; });

  std::vector<Bucket> buckets;
  std::map<BucketKey, size_t> open;  // the bucket that is being filled
  std::optional<size_t> first_final;
  for (const auto& [ready, node] : by_readiness) {
    const bool is_final = !reaches[node];
    const BucketKey key{node->attr<std::string>("axis"), node->attr<std::string>("kind"),
                        node->attr<std::string>("wire"), node->type().dtype, is_final ? kFinal : depths.at(node)};
    const auto it = open.find(key);
    const bool is_first = it != open.end() && first_final == it->second;
    if (it == open.end() ||
        buckets[it->second].bytes + Bytes(graph, *node) > (is_first ? options.first_bytes : options.max_bytes)) {
      if (is_final && !first_final) first_final = buckets.size();
      open[key] = buckets.size();
      buckets.emplace_back();
    }
    Bucket& bucket = buckets[open[key]];
    bucket.nodes.push_back(node);
    bucket.bytes += Bytes(graph, *node);
  }
  return buckets;
}

absl::StatusOr<Node*> MergeBucket(Graph& graph, const Bucket& bucket, int64_t number) {
  NodeSpec spec{&bucket.nodes[0]->op(), {}, bucket.nodes[0]->attributes(), bucket.nodes[0]->source(), {}};
  spec.attributes["bucket"] = number;
  std::vector<std::string> names;
  for (const Node* node : bucket.nodes) {
    spec.operands.insert(spec.operands.end(), node->operands().begin(), node->operands().end());
    for (size_t i = 0; i < node->num_results(); ++i) {
      names.push_back(node->result_name(i));
      spec.placements.push_back(node->placements(i));
    }
  }
  ASSIGN_OR_RETURN(Node* const merged, graph.Insert(std::move(spec)));
  size_t result = 0;
  for (Node* node : bucket.nodes) {
    for (size_t i = 0; i < node->num_results(); ++i) graph.ReplaceUses(node->result(i), merged->result(result++));
    graph.Erase(node);
  }
  for (size_t i = 0; i < names.size(); ++i) graph.SetName(merged->result(i), names[i]);
  return merged;
}

absl::StatusOr<bool> Merge(Graph& graph, const MergeOptions& options) {
  int64_t number = 0;
  for (const Node& node : graph.nodes()) {
    if (IsAllReduce(node)) number = std::max(number, node.attr<int64_t>("bucket") + 1);
  }
  const std::vector<Bucket> buckets = FillBuckets(graph, options);
  for (const Bucket& bucket : buckets) RETURN_IF_ERROR(MergeBucket(graph, bucket, number++).status());
  // The merged nodes stand at the end, after their consumers.
  RepairOrder(graph);
  return !buckets.empty();
}

}  // namespace

Pass MergeAllReduces(MergeOptions options) {
  return {"merge-all-reduces", [options](Graph& graph) { return Merge(graph, options); }, Keeps::kEveryValue,
          /*needs_mesh=*/true};
}

}  // namespace lockstep::passes
