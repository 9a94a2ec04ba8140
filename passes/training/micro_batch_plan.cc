#include "passes/training/micro_batch_plan.h"

#include <algorithm>
#include <numeric>

#include "core/micro_batches.h"
#include "core/op_def.h"

namespace lockstep::passes {

const std::string& MicroBatchAxis() {
  static const std::string axis(kMicroBatchAxis);
  return axis;
}

namespace {

bool IsAlikeInAll(Value value) { return value.placement(MicroBatchAxis()).is_replicated(); }

}  // namespace

MicroBatchPlan::MicroBatchPlan(Graph& placed) : placed_(placed) {
  FindSlices();
  FindWhatIsInLoops();
  CountLoops();
  ChooseLoops();
}

void MicroBatchPlan::FindSlices() {
  for (const Input& input : placed_.inputs()) {
    if (!IsAlikeInAll(input.value)) whole_of_[input.value] = input.value;
  }
  for (Node& node : placed_.nodes()) {
    if (node.Is("shard")) whole_of_[node.result()] = node.operand(0);
    if (!node.Is("reduce_scatter")) continue;
    for (size_t i = 0; i < node.num_results(); ++i) whole_of_[node.result(i)] = node.result(i);
  }
}

void MicroBatchPlan::FindWhatIsInLoops() {
  for (Node& node : placed_.nodes()) {
    if (IsCrossing(node) || node.Is("shard")) continue;
    bool is_in_loop = false;
    for (Value operand : node.operands()) is_in_loop |= !IsWhole(operand);
    for (size_t i = 0; i < node.num_results(); ++i) is_in_loop |= !IsAlikeInAll(node.result(i));
    if (is_in_loop) in_loop_.insert(&node);
  }
}

bool MicroBatchPlan::IsWhole(Value value) const { return IsAlikeInAll(value) && !in_loop_.contains(value.node); }

bool MicroBatchPlan::IsCrossing(const Node& node) { return node.op().has_trait(kCollective); }

Value MicroBatchPlan::WholeOf(Value value) const {
  const auto it = whole_of_.find(value);
  return it == whole_of_.end() ? Value() : it->second;
}

int64_t MicroBatchPlan::granules() const {
  int64_t granules = 0;
  const auto add = [&](Value value) {
    const Placement placement = value.placement(MicroBatchAxis());
    if (placement.is_split()) granules = std::gcd(granules, value.shape()[placement.dim()]);
  };
  for (const Input& input : placed_.inputs()) add(input.value);
  for (Node& node : placed_.nodes()) {
    for (size_t i = 0; i < node.num_results(); ++i) add(node.result(i));
  }
  return granules;
}

int MicroBatchPlan::Before(Value value) const {
  const Value whole = WholeOf(value);
  const auto it = before_.find(whole ? whole.node : value.node);
  return it == before_.end() ? 0 : it->second;
}

void MicroBatchPlan::CountLoops() {
  for (const Node& node : placed_.nodes()) {
    int before = 0;
    for (Value operand : node.operands()) before = std::max(before, Before(operand));
    before_[&node] = before + (IsCrossing(node) ? 1 : 0);
    num_loops_ = std::max(num_loops_, before_[&node]);
  }
  for (const Result& result : placed_.results()) {
    if (!IsWhole(result.value)) num_loops_ = std::max(num_loops_, Before(result.value) + 1);
  }
}

// Puts each crossing into the last loop that its users allow, so that few nodes are computed in more than one loop.
void MicroBatchPlan::ChooseLoops() {
  std::unordered_map<const Node*, int> needed;  // the first loop that needs a node
  const auto need = [&](Value value, int loop) {
    const Value whole = WholeOf(value);
    const Node* const node = whole ? whole.node : value.node;
    const auto [it, is_new] = needed.emplace(node, loop);
    if (!is_new) it->second = std::min(it->second, loop);
  };
  for (const Result& result : placed_.results())
    need(result.value, IsWhole(result.value) ? num_loops_ : num_loops_ - 1);
  for (auto it = placed_.nodes().rbegin(); it != placed_.nodes().rend(); ++it) {
    if (it->Is("shard")) continue;  // its operand is needed instead
    const auto found = needed.emplace(&*it, num_loops_).first;
    const int loop = IsCrossing(*it) ? found->second - 1 : found->second;
    for (Value operand : it->operands()) need(operand, loop);
    if (IsCrossing(*it)) loops_[&*it] = loop;
  }
  std::unordered_map<const Node*, int> after;  // the number of loops before a whole value
  for (const Node& node : placed_.nodes()) {
    if (IsCrossing(node)) after[&node] = loops_.at(&node) + 1;
    if (!IsOutside(node)) continue;
    int loops = 0;
    for (Value operand : node.operands()) {
      const auto it = after.find(operand.node);
      if (it != after.end()) loops = std::max(loops, it->second);
    }
    after[&node] = loops_[&node] = loops;
  }
}

}  // namespace lockstep::passes
