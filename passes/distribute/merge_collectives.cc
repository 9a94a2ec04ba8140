#include "passes/distribute/merge_collectives.h"

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

// What must agree within a bucket: op, attributes, dtype, depth. `depth` is the number of collectives on the longest
// path before this one; those of equal depth do not need each other. Collectives that no other one needs may be merged
// with each other at any depth: they share the depth kFinal.
using BucketKey = std::tuple<std::string, std::string, DType, int64_t>;
constexpr int64_t kFinal = -1;

// Of those that may be in buckets at all.
bool IsCollective(const Node& node) { return node.op().collective() && TraitsOf(*node.op().collective()).is_in_bucket; }

TensorType OnRank(const Graph& graph, Value value) {
  return graph.is_local() ? value.type() : LocalType(value.type(), value.placements(), graph.mesh());
}

// Whether the ranks' slices of each operand lie in memory one after the other, as its bucket has them.
bool IsContiguous(const Graph& graph, const Node& node) {
  const CollectiveTraits traits = TraitsOf(*node.op().collective());
  if (!traits.scatters && !traits.gathers) return true;
  return std::all_of(node.operands().begin(), node.operands().end(), [&](Value operand) {
    const TensorType type = OnRank(graph, operand);
    for (int64_t i = 0; i < node.attr<int64_t>("dim"); ++i) {
      if (type.shape[i] != 1) return false;
    }
    return true;
  });
}

struct Bucket {
  std::vector<Node*> nodes;
  int64_t bytes = 0;
};

std::unordered_map<const Node*, int64_t> Depths(const Graph& graph) {
  std::unordered_map<const Node*, int64_t> depth;  // of the collectives before or at a node
  for (const Node& node : graph.nodes()) {
    int64_t& own = depth[&node];
    for (Value operand : node.operands()) {
      const auto it = depth.find(operand.node);
      if (it != depth.end()) own = std::max(own, it->second + (IsCollective(*operand.node) ? 1 : 0));
    }
  }
  return depth;
}

// The nodes from which a collective can be reached.
std::unordered_map<const Node*, bool> ReachesCollective(Graph& graph) {
  std::unordered_map<const Node*, bool> reaches;
  for (auto it = graph.nodes().rbegin(); it != graph.nodes().rend(); ++it) {
    bool& own = reaches[&*it];
    for (const Node* user : it->users()) own = own || IsCollective(*user) || reaches[user];
  }
  return reaches;
}

int64_t Bytes(const Graph& graph, Node& node) {
  int64_t operands = 0, results = 0;
  for (Value operand : node.operands()) operands += static_cast<int64_t>(OnRank(graph, operand).num_bytes());
  for (size_t i = 0; i < node.num_results(); ++i)
    results += static_cast<int64_t>(OnRank(graph, node.result(i)).num_bytes());
  return std::max(operands, results);
}

std::string AttributesOf(const Node& node) {
  std::string text;
  for (const auto& [name, value] : node.attributes()) {
    if (name != "bucket") text += name + "=" + AttributeToString(value) + " ";
  }
  return text;
}

std::vector<Bucket> FillBuckets(Graph& graph, const MergeOptions& options) {
  const auto depths = Depths(graph);
  auto reaches = ReachesCollective(graph);
  std::unordered_map<const Node*, int64_t> position;
  std::vector<std::pair<int64_t, Node*>> by_readiness;
  for (Node& node : graph.nodes()) {
    position.emplace(&node, static_cast<int64_t>(position.size()));
    if (!IsCollective(node) || node.attr<int64_t>("bucket") >= 0 || !IsContiguous(graph, node)) continue;
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
    const BucketKey key{node->op_name(), AttributesOf(*node), node->type().dtype, is_final ? kFinal : depths.at(node)};
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
    if (IsCollective(node)) number = std::max(number, node.attr<int64_t>("bucket") + 1);
  }
  const std::vector<Bucket> buckets = FillBuckets(graph, options);
  for (const Bucket& bucket : buckets) RETURN_IF_ERROR(MergeBucket(graph, bucket, number++).status());
  // The merged nodes stand at the end, after their consumers.
  RepairOrder(graph);
  return !buckets.empty();
}

}  // namespace

Pass MergeCollectives(MergeOptions options) {
  return {"merge-collectives", [options](Graph& graph) { return Merge(graph, options); }, Keeps::kEveryValue,
          /*needs_mesh=*/true};
}

}  // namespace lockstep::passes
