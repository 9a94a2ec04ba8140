#include "backends/planning/own_part.h"

#include <algorithm>
#include <utility>

#include "core/op_def.h"

namespace lockstep {
namespace {

// Returns true if the node moves a value from one rank along `axis` to another one.
bool IsTransfer(const Node& node, const std::string& axis) {
  return node.op().collective() == CollectiveOp::kPermute && node.attr<std::string>("axis") == axis &&
         node.operand(0).placement(axis).is_at();
}

Lane LaneOfTransfer(const Node& node, const std::string& axis) {
  return {axis, static_cast<int>(node.attr<std::vector<int64_t>>("sources")[0]),
          static_cast<int>(node.attr<std::vector<int64_t>>("targets")[0])};
}

}  // namespace

OwnPart::OwnPart(const Graph& graph, std::optional<PlaceOfPart> place) : place_(std::move(place)) {
  if (is_whole()) return;
  AddLanes(graph);
  FindOwn(graph);
}

bool OwnPart::Has(const PlacementMap& placements) const {
  if (is_whole()) return true;
  const Placement placement = PlacementAlong(placements, place_->axis);
  return !placement.is_at() || placement.is_at(place_->coordinate);
}

bool OwnPart::HasEndOf(const Node& node) const {
  return !is_whole() && node.op().collective() && node.attr<std::string>("axis") == place_->axis &&
         node.operand(0).placement(place_->axis).is_at();
}

int OwnPart::LaneOf(const Node& node) const {
  if (is_whole() || !IsTransfer(node, place_->axis)) return -1;
  const auto lane = std::find(lanes_.begin(), lanes_.end(), LaneOfTransfer(node, place_->axis));
  return static_cast<int>(lane - lanes_.begin());
}

void OwnPart::AddLanes(const Graph& graph) {
  for (const Node& node : graph.nodes()) {
    if (!IsTransfer(node, place_->axis)) continue;
    const Lane lane = LaneOfTransfer(node, place_->axis);
    if (std::find(lanes_.begin(), lanes_.end(), lane) == lanes_.end()) lanes_.push_back(lane);
  }
}

// Walks backwards, so that the uses of each node are known.
void OwnPart::FindOwn(const Graph& graph) {
  std::unordered_set<Value, ValueHash> needed;  // on this rank
  for (const Result& result : graph.results()) {
    if (Has(result.value)) needed.insert(result.value);
  }
  for (auto it = graph.nodes().rbegin(); it != graph.nodes().rend(); ++it) {
    const Node& node = *it;
    bool is_here = true, is_needed = node.op().has_trait(kCollective), is_at = false;
    for (size_t i = 0; i < node.num_results(); ++i) {
      is_here = is_here && Has(node.placements(i));
      is_at = is_at || PlacementAlong(node.placements(i), place_->axis).is_at();
      is_needed = is_needed || needed.contains(const_cast<Node&>(node).result(i));
    }
    const bool gives = IsTransfer(node, place_->axis) && Has(node.operand(0));
    if (!gives && (!is_here || !(is_at || is_needed))) {
      nodes_of_other_ranks_.insert(&node);
      continue;
    }
    for (Value operand : node.operands()) {
      if (Has(operand)) needed.insert(operand);
    }
  }
}

}  // namespace lockstep
