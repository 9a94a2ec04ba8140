#include "core/unroll_loops.h"

#include <algorithm>
#include <string_view>
#include <utility>
#include <vector>

#include "core/builder.h"
#include "core/ops/scan.h"

namespace lockstep {
namespace {

constexpr std::string_view kIteration = ", iteration ";

class Unrolling {
 public:
  Unrolling(Graph& graph, Node& node)
      : graph_(graph), node_(node), form_(node), b_(graph, &node, node.source()), values_(form_.num_results()) {
    for (size_t i = 0; i < form_.carried; ++i) values_[i] = node.operand(i);
    stacks_.assign(form_.num_results(), std::vector<Value>(static_cast<size_t>(form_.length)));
  }

  absl::Status Run() {
    for (int64_t i = 0; i < form_.length; ++i) Iterate(i);
    for (size_t k = form_.carried; k < form_.first_summed(); ++k) values_[k] = b_.Concat(stacks_[k], 0);
    RETURN_IF_ERROR(b_.status());
    for (size_t k = 0; k < values_.size(); ++k) graph_.ReplaceUses(node_.result(k), values_[k]);
    graph_.Erase(&node_);
    return absl::OkStatus();
  }

 private:
  // The part of a scanned operand at one position.
  Value PartOf(Value all, const Shape& shape, int64_t position) {
    std::vector<int64_t> start(all.shape().rank(), 0), limit = all.shape().dims();
    start[0] = position;
    limit[0] = position + 1;
    return b_.Reshape(b_.Slice(all, std::move(start), std::move(limit)), shape);
  }

  void Iterate(int64_t i) {
    const int64_t at = form_.position(i);
    ValueMap map;
    for (size_t k = 0; k < form_.num_inputs(); ++k) {
      const Value input = form_.body->inputs()[k].value;
      if (k < form_.carried) map[input] = values_[k];
      else map[input] = form_.is_scanned(k) ? PartOf(node_.operand(k), input.shape(), at) : node_.operand(k);
    }
    for (const Node& node : form_.body->nodes()) Copy(node, i, map);
    for (size_t k = 0; k < form_.num_results() && b_.status().ok(); ++k)
      Take(k, map.at(form_.body->results()[k].value), i);
  }

  void Copy(const Node& node, int64_t i, ValueMap& map) {
    if (!b_.status().ok()) return;
    NodeSpec spec = CopyOf(node, map);
    const std::string outer = node_.source().substr(SplitIterations(node_.source()).first.size());
    spec.source += outer + std::string(kIteration) + std::to_string(i) + " of " + std::to_string(form_.length);
    const absl::StatusOr<Node*> copy = graph_.Insert(std::move(spec), &node_);
    b_.Fail(copy.status());
    for (size_t k = 0; copy.ok() && k < node.num_results(); ++k)
      map[const_cast<Node&>(node).result(k)] = (*copy)->result(k);
  }

  void Take(size_t k, Value value, int64_t i) {
    if (form_.is_stacked(k)) {
      stacks_[k][static_cast<size_t>(form_.position(i))] = b_.Reshape(value, Stacked(value.type(), 1).shape);
    } else {
      values_[k] = k < form_.carried || i == 0 ? value : b_.Add(values_[k], value);
    }
  }

  Graph& graph_;
  Node& node_;
  const ScanForm form_;
  Builder b_;
  std::vector<Value> values_;               // by result; of stacks, at the end
  std::vector<std::vector<Value>> stacks_;  // by result and position
};

// Returns the first loop to unroll, or null.
Node* FirstLoop(Graph& graph, int64_t most_nodes) {
  for (Node& node : graph.nodes()) {
    if (!node.Is("scan")) continue;
    const ScanForm form(node);
    const auto nodes = static_cast<int64_t>(form.body->nodes().size());
    const int64_t rest = most_nodes - static_cast<int64_t>(graph.nodes().size());
    if (form.length > 0 && form.length <= rest / std::max<int64_t>(nodes, 1)) return &node;
  }
  return nullptr;
}

}  // namespace

std::pair<std::string, std::string> SplitIterations(const std::string& source) {
  const size_t at = source.find(kIteration);
  if (at == std::string::npos) return {source, ""};
  return {source.substr(0, at), source.substr(at + 2)};
}

absl::Status UnrollLoops(Graph& graph, int64_t most_nodes) {
  while (Node* loop = FirstLoop(graph, most_nodes)) RETURN_IF_ERROR(Unrolling(graph, *loop).Run());
  return absl::OkStatus();
}

}  // namespace lockstep
