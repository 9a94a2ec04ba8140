#include "passes/optimize/fusion_groups.h"

#include <algorithm>
#include <optional>
#include <string>
#include <unordered_map>
#include <unordered_set>

#include "core/op_def.h"
#include "passes/optimize/contracted_dag.h"
#include "passes/places.h"

namespace lockstep::passes {
namespace {

using Ints = std::vector<int64_t>;

bool IsReduction(const Node& node) { return node.op().reduction().has_value(); }

bool IsElementwise(const Node& node) { return node.op().has_trait(kElementwise) && node.num_results() == 1; }

// Returns true if an op only moves elements. Nodes that name an axis are excluded, since a fusion's body has no mesh.
bool IsMover(const Node& node) {
  return node.op().is_mover() && !node.op().has_trait(kRematerialised) && !node.attributes().contains("axis");
}

// The iteration space of a group's loop.
struct Loop {
  Shape shape;  // the shape of the elementwise values and of the operands of reductions
  bool reduces = false;
  Ints dims;   // the reduced dims
  Shape kept;  // the shape after the reductions
};

struct Group {
  std::vector<size_t> nodes;  // positions, ascending
  Loop loop;
  std::string at;  // the ranks of Placement::At, and the number of their transfers before the group
  bool is_fusible = false;
  bool feeds_collective = false;
};

class Grouping {
 public:
  Grouping(const Graph& graph, const FusionOptions& options);

  void JoinProducersAndConsumers();
  void JoinReadersOfOneValue();
  std::vector<std::vector<Node*>> TakeGroups() const;

 private:
  void AddNode(Node& node);
  void AddDependencies();
  Group& GroupOf(size_t position) { return groups_[dag_.Find(position)]; }
  const Group& GroupOf(size_t position) const { return groups_[dag_.Find(position)]; }

  // Returns the position of the node that computes `value`, looking through copied nodes; nullopt for an input.
  std::optional<size_t> Producer(Value value) const;
  bool IsResult(Value value) const { return results_.contains(value); }

  // Joins the groups if the rules allow it.
  bool Join(size_t a, size_t b);
  std::optional<Loop> JointLoop(const Group& a, const Group& b) const;
  bool LinksFit(const Group& producer, const Group& consumer, const Loop& loop) const;
  bool WithinLimits(const Group& a, const Group& b) const;

  const FusionOptions& options_;
  std::vector<Node*> nodes_;  // all nodes; copied nodes are in groups of their own that are not fusible
  std::unordered_map<const Node*, size_t> position_;
  std::unordered_map<std::string, int64_t> transfers_;  // the transfers before the current node, by their ranks
  std::unordered_set<Value, ValueHash> results_;
  std::vector<Group> groups_;  // one for each node at first; groups that were joined to another are empty
  ContractedDag dag_;          // the dependencies of groups, looking through copied nodes
};

Grouping::Grouping(const Graph& graph, const FusionOptions& options) : options_(options), dag_(graph.nodes().size()) {
  for (const Result& result : graph.results()) results_.insert(result.value);
  for (const Node& node : graph.nodes()) AddNode(const_cast<Node&>(node));
  AddDependencies();
}

void Grouping::AddNode(Node& node) {
  const size_t position = nodes_.size();
  position_[&node] = position;
  nodes_.push_back(&node);
  Group& group = groups_.emplace_back();
  group.nodes = {position};
  group.at = RanksOf(node.placements());
  if (!group.at.empty()) group.at += "behind " + std::to_string(transfers_[group.at]);
  if (node.op().collective() == CollectiveOp::kPermute) {
    ++transfers_[RanksOf(node.operand(0).placements())];
    ++transfers_[RanksOf(node.placements())];
  }
  for (const Node* user : node.users())
    group.feeds_collective = group.feeds_collective || user->op().has_trait(kCollective);
  if (node.num_results() != 1 || node.type(0).num_elements() == 0 || IsRematerializable(node)) return;
  if (IsReduction(node)) {
    if (node.operand(0).type().num_elements() == 0) return;
    group.is_fusible = true;
    group.loop = {node.operand(0).shape(), true, node.attr<Ints>("dims"), node.type(0).shape};
  } else if (IsElementwise(node) || IsMover(node)) {
    group.is_fusible = true;
    group.loop.shape = node.type(0).shape;
  }
}

std::optional<size_t> Grouping::Producer(Value value) const {
  value = SourceOfCopies(value);
  if (IsRematerializable(*value.node)) return std::nullopt;
  const auto it = position_.find(value.node);
  return it == position_.end() ? std::nullopt : std::optional(it->second);
}

void Grouping::AddDependencies() {
  std::optional<size_t> last_collective;
  for (size_t i = 0; i < nodes_.size(); ++i) {
    for (Value operand : nodes_[i]->operands()) {
      if (const std::optional<size_t> producer = Producer(operand)) dag_.AddEdge(*producer, i);
    }
    if (!nodes_[i]->op().has_trait(kCollective)) continue;
    if (last_collective) dag_.AddEdge(*last_collective, i);
    last_collective = i;
  }
}

// Returns true if reduced values may be broadcast back into the loop: each row is reduced on its own, in one unit of
// work, and either there are enough rows for several threads or little work in total.
bool RowsAreOwnUnits(const Loop& loop, const FusionOptions& options) {
  const int64_t rank = loop.shape.rank();
  for (size_t i = 0; i < loop.dims.size(); ++i) {
    if (loop.dims[i] != rank - static_cast<int64_t>(loop.dims.size() - i)) return false;  // not the last dimensions
  }
  const int64_t rows = loop.kept.num_elements(), row = loop.shape.num_elements() / rows;
  return row <= options.max_row && (rows >= 8 || rows * row <= 16384);
}

std::optional<Loop> Grouping::JointLoop(const Group& a, const Group& b) const {
  const Loop &first = a.loop, &second = b.loop;
  if (!first.reduces && !second.reduces) {
    if (first.shape.num_elements() != second.shape.num_elements()) return std::nullopt;
    return second;
  }
  Loop loop = first.reduces ? first : second;
  if (first.reduces && second.reduces) {
    if (first.shape != second.shape || first.dims != second.dims) return std::nullopt;
    return loop;
  }
  const Shape& other = first.reduces ? second.shape : first.shape;
  if (other != loop.shape && other != loop.kept) return std::nullopt;
  return loop;
}

// Returns true if `node` broadcasts a reduced value back to the loop's shape.
bool BroadcastsBack(const Node& node, const Loop& loop) {
  if (!node.op().index_map() || !loop.reduces || node.type(0).shape != loop.shape ||
      node.operand(0).shape() != loop.kept)
    return false;
  IndexMap kept;
  const auto rank = static_cast<size_t>(loop.shape.rank());
  for (size_t dim = 0; dim < rank; ++dim) {
    if (std::find(loop.dims.begin(), loop.dims.end(), static_cast<int64_t>(dim)) == loop.dims.end())
      kept.push_back(Affine::Index(rank, dim));
  }
  return IndexMapOf(node) == kept;
}

bool Grouping::LinksFit(const Group& producer, const Group& consumer, const Loop& loop) const {
  for (size_t position : consumer.nodes) {
    const Node& node = *nodes_[position];
    for (Value operand : node.operands()) {
      const std::optional<size_t> from = Producer(operand);
      if (!from || &GroupOf(*from) != &producer) continue;
      const bool is_direct = operand.node == nodes_[*from];
      if (is_direct) {
        if (IsMover(node) && (loop.reduces || !node.op().has_trait(kKeepsOrder))) return false;
        if (IsReduction(node) && operand.shape() != loop.shape) return false;
        continue;
      }
      // Through a broadcast, only reduced values are read, for each element of their row. Other values would be
      // computed repeatedly.
      if (!BroadcastsBack(*operand.node, loop) || operand.node->operand(0).node != nodes_[*from]) return false;
      if (!producer.loop.reduces || !RowsAreOwnUnits(loop, options_)) return false;
    }
  }
  return true;
}

bool Grouping::WithinLimits(const Group& a, const Group& b) const {
  if (static_cast<int64_t>(a.nodes.size() + b.nodes.size()) > options_.max_nodes) return false;
  std::unordered_set<Value, ValueHash> operands;
  std::unordered_set<const Node*> inside;
  for (const Group* group : {&a, &b}) {
    for (size_t position : group->nodes) inside.insert(nodes_[position]);
  }
  int64_t results = 0;
  for (const Group* group : {&a, &b}) {
    for (size_t position : group->nodes) {
      Node& node = *nodes_[position];
      for (Value operand : node.operands()) {
        operand = SourceOfCopies(operand);
        if (!inside.contains(operand.node) && !IsRematerializable(*operand.node)) operands.insert(operand);
      }
      results += IsLiveOut(node.result(), inside, results_);
    }
  }
  return static_cast<int64_t>(operands.size()) <= options_.max_operands && results <= options_.max_results;
}

bool Grouping::Join(size_t a, size_t b) {
  if (a == b) return false;
  Group &first = groups_[a], &second = groups_[b];
  if (!first.is_fusible || !second.is_fusible || first.at != second.at) return false;
  const std::optional<Loop> loop = JointLoop(first, second);
  if (!loop || !LinksFit(first, second, *loop) || !LinksFit(second, first, *loop) || !WithinLimits(first, second))
    return false;
  if (!dag_.Merge(a, b)) return false;
  std::vector<size_t> nodes;
  std::merge(first.nodes.begin(), first.nodes.end(), second.nodes.begin(), second.nodes.end(),
             std::back_inserter(nodes));
  first.nodes = std::move(nodes);
  first.loop = *loop;
  first.feeds_collective = first.feeds_collective || second.feeds_collective;
  second = Group();
  return true;
}

// Goes from the last consumer to the first, so that a node is preferably joined with its consumers, not its operands.
// Then a value that the backward pass computes from a forward value is computed in the backward pass, and is not stored
// in between.
void Grouping::JoinProducersAndConsumers() {
  for (size_t consumer = nodes_.size(); consumer-- > 0;) {
    if (IsMover(*nodes_[consumer]) && GroupOf(consumer).nodes.size() == 1) continue;
    for (Value operand : nodes_[consumer]->operands()) {
      const std::optional<size_t> producer = Producer(operand);
      if (!producer || GroupOf(*producer).feeds_collective) continue;
      Node& node = *nodes_[*producer];
      // A mover on its own can be a view, which is free. It is joined only if this loop is its only reader.
      if (IsMover(node) && (node.users().size() != 1 || IsResult(node.result()))) continue;
      Join(dag_.Find(*producer), dag_.Find(consumer));
    }
  }
}

void Grouping::JoinReadersOfOneValue() {
  std::unordered_map<Value, size_t, ValueHash> last_reader;
  for (size_t i = 0; i < nodes_.size(); ++i) {
    if (IsMover(*nodes_[i])) continue;
    for (Value operand : nodes_[i]->operands()) {
      if (operand.type().num_elements() < options_.min_shared_elements || IsRematerializable(*operand.node)) continue;
      const auto [it, is_first] = last_reader.try_emplace(operand, i);
      if (is_first) continue;
      const bool held_up = GroupOf(it->second).feeds_collective || GroupOf(i).feeds_collective;
      if (!held_up) Join(dag_.Find(it->second), dag_.Find(i));
      it->second = i;
    }
  }
}

std::vector<std::vector<Node*>> Grouping::TakeGroups() const {
  std::vector<std::vector<Node*>> taken;
  for (size_t i = 0; i < nodes_.size(); ++i) {
    const Group& group = GroupOf(i);
    if (group.nodes.empty() || group.nodes[0] != i || !group.is_fusible) continue;
    std::vector<Node*> nodes;
    bool reads_copies = false;
    for (size_t position : group.nodes) {
      nodes.push_back(nodes_[position]);
      for (Value operand : nodes_[position]->operands())
        reads_copies = reads_copies || IsRematerializable(*operand.node);
    }
    const bool is_mover = nodes.size() == 1 && IsMover(*nodes[0]);
    if (nodes.size() > 1 || (reads_copies && !is_mover)) taken.push_back(std::move(nodes));
  }
  return taken;
}

}  // namespace

bool IsRematerializable(const Node& node) {
  if (node.op().has_trait(kRematerialised)) return true;
  return node.is_constant() && node.attr<Tensor>("value").num_elements() > 0 &&
         node.attr<Tensor>("value").AllElementsEqual();
}

Value SourceOfCopies(Value value) {
  while (IsRematerializable(*value.node) && !value.node->operands().empty()) value = value.node->operand(0);
  return value;
}

bool IsLiveOut(Value value, const std::unordered_set<const Node*>& group,
               const std::unordered_set<Value, ValueHash>& results) {
  if (results.contains(value)) return true;
  for (Node* user : value.node->users()) {
    if (group.contains(user)) continue;
    if (!IsRematerializable(*user) || IsLiveOut(user->result(), group, results)) return true;
  }
  return false;
}

std::vector<std::vector<Node*>> FusionGroups(const Graph& graph, const FusionOptions& options) {
  Grouping grouping(graph, options);
  grouping.JoinProducersAndConsumers();
  grouping.JoinReadersOfOneValue();
  return grouping.TakeGroups();
}

}  // namespace lockstep::passes
