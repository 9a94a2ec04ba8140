#include "passes/distribute/merge_collectives.h"

#include <algorithm>

#include "passes/distribute/fill_buckets.h"
#include "passes/topological_order.h"

namespace lockstep::passes {
namespace {

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
    if (IsInBucket(node)) number = std::max(number, node.attr<int64_t>("bucket") + 1);
  }
  ASSIGN_OR_RETURN(const std::vector<Bucket> buckets, FillBuckets(graph, options));
  for (const Bucket& bucket : buckets) RETURN_IF_ERROR(MergeBucket(graph, bucket, number++).status());
  // The merged nodes were inserted at the end, after their consumers.
  RepairOrder(graph);
  return !buckets.empty();
}

}  // namespace

Pass MergeCollectives(MergeOptions options) {
  return {"merge-collectives", [options](Graph& graph) { return Merge(graph, options); }, Keeps::kEveryValue,
          /*needs_mesh=*/true};
}

}  // namespace lockstep::passes
