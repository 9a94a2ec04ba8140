// Assigns stages to the nodes of a step: the forward part is cut, and the rest follows it.

#include <algorithm>

#include "core/op_def.h"
#include "passes/stages/balanced_cut.h"
#include "passes/stages/stage_plan.h"

namespace lockstep::passes {
namespace {

int64_t TransferBytes(Value value) { return static_cast<int64_t>(value.type().num_bytes()); }

}  // namespace

// --- Forward ---------------------------------------------------------------------------------------------------------

absl::Status StagePlan::CutForward() {
  std::vector<Item*> forward;
  std::unordered_map<const Node*, size_t> position;
  for (Item& item : items_) {
    if (!item.is_forward || item.where != Where::kStage) continue;
    position[item.node] = forward.size();
    forward.push_back(&item);
  }
  if (options_.stages < 1 || forward.size() < static_cast<size_t>(options_.stages)) {
    return InvalidArgument() << "graph @" << step_.name() << " is to be cut into " << options_.stages
                             << " stages, and has only " << forward.size() << " nodes before its gradients";
  }
  std::vector<double> costs, cuts(forward.size() + 1, 0.0);
  std::vector<Value> alive;  // in a fixed order, since the sums below depend on it
  std::unordered_map<Value, size_t, ValueHash> last_read;
  for (size_t i = 0; i < forward.size(); ++i) {
    costs.push_back(FlopsOf(*forward[i]->node));
    for (Value operand : forward[i]->node->operands()) {
      for (Value root : Roots(operand)) {
        if (!position.contains(root.node)) continue;
        if (!last_read.contains(root)) alive.push_back(root);
        last_read[root] = i;
      }
    }
  }
  // A value that is alive at a cut is sent forward, and its gradient back.
  for (Value value : alive) {
    for (size_t cut = position.at(value.node) + 1; cut <= last_read.at(value); ++cut)
      cuts[cut] += 2 * options_.operations_per_byte * static_cast<double>(TransferBytes(value));
  }
  const std::vector<size_t> begins = BalancedCut(costs, cuts, options_.stages);
  for (size_t stage = 0; stage < begins.size(); ++stage) {
    const size_t end = stage + 1 < begins.size() ? begins[stage + 1] : forward.size();
    for (size_t i = begins[stage]; i < end; ++i) forward[i]->stage = static_cast<int64_t>(stage);
  }
  for (const Item* item : forward) {
    for (Value operand : item->node->operands()) {
      for (Value root : Roots(operand)) AddRead(root, item->stage);
    }
  }
  for (Value state : states_) {
    const auto reads = reads_.find(state);
    if (reads != reads_.end()) homes_[state] = *std::min_element(reads->second.begin(), reads->second.end());
  }
  return absl::OkStatus();
}

// --- The rest --------------------------------------------------------------------------------------------------------

// Assigns each node before the micro-batches to the first stage that reads it. Goes from the end, so that readers are
// assigned first. If `forward_alone`, assigns only nodes that the forward part reads; else all remaining ones.
void StagePlan::PlaceBefore(bool forward_alone) {
  for (size_t i = items_.size(); i-- > 0;) {
    Item& item = items_[i];
    if (item.part != Part::kBefore || item.where != Where::kStage || item.stage >= 0) continue;
    for (size_t k = 0; k < item.node->num_results(); ++k) {
      const auto reads = reads_.find(const_cast<Node&>(*item.node).result(k));
      if (reads == reads_.end()) continue;
      const int64_t first = *std::min_element(reads->second.begin(), reads->second.end());
      item.stage = item.stage < 0 ? first : std::min(item.stage, first);
    }
    if (item.stage < 0 && !forward_alone) item.stage = options_.stages - 1;
    if (item.stage < 0) continue;
    for (Value operand : item.node->operands()) {
      for (Value root : Roots(operand)) {
        AddRead(root, item.stage);
        if (IsState(root)) {
          const auto [home, is_new] = homes_.emplace(root, item.stage);
          if (!is_new && forward_alone) home->second = std::min(home->second, item.stage);
        }
      }
    }
  }
}

// Returns true if the stage has the value once the forward part is computed.
bool StagePlan::IsOn(Value root, int64_t stage) const {
  const auto reads = reads_.find(root);
  return StageOf(root) == stage || (reads != reads_.end() && reads->second.contains(stage));
}

// Returns the last stage up to `limit` that has all roots with a stage once the forward part is computed. If there is
// none, returns the last stage that computes one of them, at most `limit`.
int64_t StagePlan::LastStageWithAll(const std::vector<Value>& roots, int64_t limit) const {
  std::vector<Value> placed;
  int64_t last = -1;
  for (Value root : roots) {
    if (StageOf(root) < 0) continue;
    placed.push_back(root);
    last = std::max(last, StageOf(root));
  }
  for (int64_t stage = limit; stage >= 0; --stage) {
    const bool has_all = std::all_of(placed.begin(), placed.end(), [&](Value root) { return IsOn(root, stage); });
    if (has_all) return stage;
  }
  return std::min(limit, last);
}

// Assigns the backward nodes of a micro-batch. It goes back through the stages: a node that needs a backward result of
// a stage is on that stage or an earlier one.
void StagePlan::PlaceBackward() {
  for (Item& item : items_) {
    if (item.part != Part::kMicroBatch || item.is_forward || item.where != Where::kStage) continue;
    std::vector<Value> forward;
    int64_t limit = options_.stages - 1;
    for (Value operand : item.node->operands()) {
      for (Value root : Roots(operand)) {
        const Item* const of = ItemOf(root);
        const bool is_backward = of != nullptr && of->part == Part::kMicroBatch && !of->is_forward;
        if (is_backward) limit = std::min(limit, of->stage);
        else forward.push_back(root);
      }
    }
    item.stage = LastStageWithAll(forward, limit);
    for (Value operand : item.node->operands()) {
      for (Value root : Roots(operand)) {
        const Item* const of = ItemOf(root);
        if (of != nullptr && of->part == Part::kBefore && of->stage < 0) AddRead(root, item.stage);
        if (IsState(root)) homes_.emplace(root, item.stage);
      }
    }
  }
}

bool StagePlan::MayMove(const Item& item, int64_t stage) const {
  const bool is_backward = !item.is_forward && item.part != Part::kBefore && !item.node->op().has_trait(kOptimizer);
  if (!is_backward || item.where != Where::kStage || item.node->num_results() != 1) return false;
  if (stage < 0 || stage >= item.stage) return false;
  for (Value operand : item.node->operands()) {
    for (Value root : Roots(operand)) {
      const Item* const of = ItemOf(root);
      const bool is_forward = IsState(root) || (of != nullptr && (of->is_forward || of->part == Part::kBefore));
      if (is_forward && StageOf(root) >= 0 && !IsOn(root, stage)) return false;
    }
  }
  return true;
}

// Moves gradients to the stages of their variables if all other operands are there too, such as for the weights of a
// stage's first layer: then the gradient of the activations travels instead of the one of the weights. Goes from the
// end, so that readers come first.
void StagePlan::PlaceGradients() {
  constexpr int64_t kNowhere = -1;                       // the value stays on its stage
  std::unordered_map<Value, int64_t, ValueHash> wanted;  // the stage on which all readers want the value
  for (size_t i = items_.size(); i-- > 0;) {
    Item& item = items_[i];
    const Node& node = *item.node;
    const Value result = const_cast<Node&>(node).result();
    const bool is_optimizer = node.op().has_trait(kOptimizer);
    const bool is_behind = loop_ != nullptr && item.part == Part::kAfter;
    int64_t stage = kNowhere;
    if (is_optimizer) stage = StageOf(node.operand(0));
    else if (const auto found = wanted.find(result); found != wanted.end()) stage = found->second;
    const bool moves = MayMove(item, stage);
    if (moves && !is_behind) item.stage = stage;
    for (Value operand : node.operands()) {
      // A sum over the ranks of another axis does not change the stage.
      const bool keeps = node.op().has_trait(kElementwise) || node.op().has_trait(kCollective);
      const bool passes_on = is_optimizer || ((moves || is_behind) && keeps);
      const bool wants = passes_on && operand.type() == node.type();
      if (is_behind && !wants) continue;  // the node follows its operand's stage
      const int64_t here = wants ? stage : (moves ? stage : kNowhere);
      const auto [found, is_first] = wanted.emplace(Source(operand), here);
      if (!is_first && found->second != here) found->second = kNowhere;
    }
  }
}

// Assigns the nodes after the micro-batches: an optimizer to the stage of its variable, other nodes to the stage of
// their largest operand, or near it where the states and the forward values that they need are.
void StagePlan::PlaceAfter() {
  for (Item& item : items_) {
    if (item.part != Part::kAfter || item.where != Where::kStage) continue;
    std::vector<Value> of_states, forward, roots;
    for (Value operand : item.node->operands()) {
      for (Value root : Roots(operand)) {
        const Item* const of = ItemOf(root);
        if (IsState(root)) of_states.push_back(root);
        if (StageOf(root) < 0) continue;
        const bool is_forward =
            IsState(root) || (of != nullptr && (of->part == Part::kBefore || (of->is_forward && loop_ == nullptr)));
        (is_forward ? forward : roots).push_back(root);
      }
    }
    const bool is_optimizer = item.node->op().has_trait(kOptimizer);
    if (is_optimizer && !of_states.empty() && StageOf(of_states[0]) >= 0) {
      item.stage = StageOf(of_states[0]);
    } else {
      int64_t limit = options_.stages - 1;
      const auto largest = std::max_element(roots.begin(), roots.end(),
                                            [](Value a, Value b) { return TransferBytes(a) < TransferBytes(b); });
      if (largest != roots.end()) limit = StageOf(*largest);
      item.stage = LastStageWithAll(forward, limit);
      if (item.stage < 0) item.stage = limit;
    }
    for (Value state : of_states) homes_.emplace(state, item.stage);
  }
}

// Assigns states that nothing reads to stage 0.
void StagePlan::PlaceStates() {
  for (Value state : states_) {
    if (!homes_.contains(state)) homes_[state] = 0;
  }
}

}  // namespace lockstep::passes
