#include "passes/stages/stage_plan.h"

#include <algorithm>
#include <set>
#include <string>
#include <unordered_set>

#include "core/check.h"
#include "core/op_def.h"
#include "core/ops/scan.h"
#include "passes/training/accumulate.h"

namespace lockstep::passes {
namespace {

using Part = StagePlan::Part;

bool IsLoopOverMicroBatches(const Node& node) { return node.op().has_trait(kLoop) && node.attr<bool>("one_at_a_time"); }

// Returns true if a node computes a gradient, by the sources that autodiff.h gives. A wrong answer only costs time.
bool IsOfGradients(const Node& node) {
  return node.source().starts_with("gradient of ") || node.op().has_trait(kOptimizer);
}

// Returns the node of the model that makes `second` a separate loop: the first one, before or in it, that needs a
// result of `first`, which all micro-batches contribute to. Returns null if there is none.
const Node* FindReaderOfAll(const Graph& step, const Node& first, const Node& second) {
  std::unordered_set<const Node*> of_first = {&first}, before_second = {&second};
  const auto is_of_first = [&](Value value) { return of_first.contains(value.node); };
  for (const Node& node : step.nodes()) {
    if (std::any_of(node.operands().begin(), node.operands().end(), is_of_first)) of_first.insert(&node);
  }
  const Node* found = nullptr;
  for (auto it = step.nodes().rbegin(); it != step.nodes().rend(); ++it) {
    if (!before_second.contains(&*it)) continue;
    for (Value operand : it->operands()) before_second.insert(operand.node);
    const bool is_of_model = it->source() != kMicroBatchesSource;
    if (is_of_model && of_first.contains(&*it)) found = &*it;
  }
  if (found != nullptr) return found;
  const ScanForm form(second.attributes());
  for (size_t i = 0; i < second.operands().size(); ++i) {
    const std::vector<Node*>& readers = form.body->inputs()[i].value.node->users();
    if (is_of_first(second.operand(i)) && !readers.empty()) return readers[0];
  }
  return nullptr;
}

bool IsMadeWhereItIsRead(const Node& node) {
  const bool is_generated = node.op().has_trait(kGenerator) && !node.op().ranks_eval();
  return node.is_constant() || node.op().has_trait(kRematerialised) || is_generated;
}

}  // namespace

absl::StatusOr<StagePlan> StagePlan::Make(const Graph& step, const StageOptions& options) {
  StagePlan plan(step, options);
  for (const Input& input : step.inputs()) {
    if (input.is_state) plan.states_.insert(input.value);
  }
  RETURN_IF_ERROR(plan.FindLoop());
  plan.AddItems();
  plan.FindForward();
  RETURN_IF_ERROR(plan.CutForward());
  plan.PlaceBefore(/*forward_alone=*/true);
  plan.PlaceBackward();
  plan.PlaceBefore(/*forward_alone=*/false);
  if (plan.loop_ != nullptr) plan.PlaceGradients();
  plan.PlaceAfter();
  if (plan.loop_ == nullptr) plan.PlaceGradients();
  plan.PlaceStates();
  plan.FindReaders();
  return plan;
}

int64_t StagePlan::micro_batches() const { return loop_ == nullptr ? 1 : loop_->attr<int64_t>("length"); }

// Finds the loop that reads states. Other loops, such as one that counts labels, are nodes like any other.
absl::Status StagePlan::FindLoop() {
  std::unordered_set<const Node*> of_states;  // nodes outside of the body that depend on states
  for (const Node& node : step_.nodes()) {
    const bool reads = std::any_of(node.operands().begin(), node.operands().end(), [&](Value operand) {
      return states_.contains(operand) || of_states.contains(operand.node);
    });
    if (!reads) continue;
    of_states.insert(&node);
    if (!IsLoopOverMicroBatches(node)) continue;
    if (loop_ != nullptr) {
      const Node* const reader = FindReaderOfAll(step_, *loop_, node);
      return InvalidArgument() << "the micro-batches of graph @" << step_.name()
                               << " need two passes over the model, as with a loss that compares all samples with each "
                                  "other"
                               << (reader == nullptr ? "" : ", here for " + reader->Describe())
                               << "; stages of a pipeline make only one";
    }
    loop_ = &node;
  }
  if (loop_ == nullptr) return absl::OkStatus();
  const ScanForm form(loop_->attributes());
  if (form.carried > 0) {
    return InvalidArgument() << "the micro-batches of graph @" << step_.name()
                             << " carry values from one to the next, and cannot be computed by stages of a pipeline";
  }
  for (size_t i = 0; i < form.num_inputs(); ++i) {
    body_inputs_[form.body->inputs()[i].value] = i;
    if (form.is_scanned(i)) scanned_.insert(form.body->inputs()[i].value);
  }
  return absl::OkStatus();
}

void StagePlan::AddItems() {
  const auto add = [&](const Node& node, Part part) {
    Item item{&node, part};
    bool is_everywhere = IsMadeWhereItIsRead(node) || node.op().has_trait(kMovement);
    for (Value operand : node.operands()) {
      const Value value = Resolve(operand);
      const Item* const of = ItemOf(value);
      item.differs_by_micro_batch |= IsScanned(value) || (of != nullptr && of->differs_by_micro_batch);
      const bool is_of_states = states_.contains(value) || (IsOfLoop(value) && !Roots(OfOneMicroBatch(value)).empty());
      is_everywhere &= !is_of_states && (of == nullptr || of->where == StagePlan::Where::kEverywhere);
    }
    if (node.op().has_trait(kCollective)) is_everywhere = false;
    if (is_everywhere) item.where = StagePlan::Where::kEverywhere;
    else if (IsMadeWhereItIsRead(node)) item.where = StagePlan::Where::kCopiedToReaders;
    item_of_[&node] = items_.size();
    items_.push_back(item);
  };
  bool is_behind = false;
  for (const Node& node : step_.nodes()) {
    if (&node == loop_) {
      for (const Node& inner : ScanForm(loop_->attributes()).body->nodes()) add(inner, Part::kMicroBatch);
      is_behind = true;
    } else {
      add(node, loop_ == nullptr || is_behind ? Part::kAfter : Part::kBefore);
    }
  }
}

// Marks the forward nodes: those that results other than states depend on, except nodes of gradients and nodes that
// depend on these.
void StagePlan::FindForward() {
  std::unordered_set<const Node*> backward, wanted;
  for (const Item& item : items_) {
    const Node& node = *item.node;
    const bool follows = std::any_of(node.operands().begin(), node.operands().end(),
                                     [&](Value operand) { return backward.contains(Source(operand).node); });
    if (follows || IsOfGradients(node)) backward.insert(&node);
  }
  for (const Result& result : step_.results()) {
    if (!result.is_state) wanted.insert(Source(result.value).node);
  }
  for (size_t i = items_.size(); i-- > 0;) {
    Item& item = items_[i];
    if (!wanted.contains(item.node)) continue;
    for (Value operand : item.node->operands()) wanted.insert(Source(operand).node);
    if (backward.contains(item.node) || (loop_ != nullptr && item.part != Part::kMicroBatch)) continue;
    item.is_forward = true;
    item.part = Part::kMicroBatch;
  }
}

const StagePlan::Item* StagePlan::ItemOf(Value value) const {
  const auto found = item_of_.find(value.node);
  return found == item_of_.end() ? nullptr : &items_[found->second];
}

Value StagePlan::Resolve(Value value) const {
  const auto input = body_inputs_.find(value);
  return input == body_inputs_.end() || IsScanned(value) ? value : loop_->operand(input->second);
}

Value StagePlan::Stack(Value input) const { return loop_->operand(body_inputs_.at(input)); }

Value StagePlan::OfOneMicroBatch(Value result) const {
  return Resolve(ScanForm(loop_->attributes()).body->results()[static_cast<size_t>(result.index)].value);
}

// Returns the value of a node or an input that `value` stands for; for a result of the loop, the value of its body.
Value StagePlan::Source(Value value) const {
  value = Resolve(value);
  return IsOfLoop(value) ? OfOneMicroBatch(value) : value;
}

void StagePlan::AddRoots(Value value, std::vector<Value>& roots) const {
  value = Resolve(value);
  if (IsScanned(value)) return AddRoots(Stack(value), roots);
  const Item* const item = ItemOf(value);
  const bool is_sum = IsOfLoop(value) && !Roots(OfOneMicroBatch(value)).empty();
  if (is_sum || IsState(value) || (item != nullptr && item->where == StagePlan::Where::kStage)) {
    if (std::find(roots.begin(), roots.end(), value) == roots.end()) roots.push_back(value);
  } else if (item != nullptr && item->where == StagePlan::Where::kCopiedToReaders) {
    for (Value operand : item->node->operands()) AddRoots(operand, roots);
  }
}

std::vector<Value> StagePlan::Roots(Value value) const {
  std::vector<Value> roots;
  AddRoots(value, roots);
  return roots;
}

int64_t StagePlan::StageOf(Value value) const {
  value = Resolve(value);
  if (IsOfLoop(value)) {
    const std::vector<Value> roots = Roots(OfOneMicroBatch(value));
    return roots.empty() ? -1 : StageOf(roots[0]);
  }
  const Item* const item = ItemOf(value);
  if (item != nullptr) return item->stage;
  const auto home = homes_.find(value);
  return home == homes_.end() ? -1 : home->second;
}

int64_t StagePlan::StageOf(const Result& result) const {
  if (result.is_state) return homes_.at(step_.FindInput(result.name)->value);
  const std::vector<Value> roots = Roots(result.value);
  return roots.empty() ? -1 : StageOf(roots[0]);
}

std::vector<int64_t> StagePlan::Readers(Value value) const {
  const auto found = readers_.find(value);
  return found == readers_.end() ? std::vector<int64_t>() : found->second;
}

void StagePlan::FindReaders() {
  std::unordered_map<Value, std::set<int64_t>, ValueHash> readers;
  const auto read = [&](Value value, int64_t stage) {
    for (Value root : Roots(value)) {
      if (StageOf(root) != stage) readers[root].insert(stage);
    }
  };
  for (const Item& item : items_) {
    if (item.where != StagePlan::Where::kStage) continue;
    LOCKSTEP_CHECK(item.stage >= 0 && item.stage < options_.stages) << item.node->Describe();
    for (Value operand : item.node->operands()) read(operand, item.stage);
  }
  for (const Result& result : step_.results()) read(result.value, StageOf(result));
  for (size_t i = 0; loop_ != nullptr && i < loop_->num_results(); ++i) {
    const Value result = const_cast<Node&>(*loop_).result(i);
    read(OfOneMicroBatch(result), StageOf(result));
  }
  for (const auto& [root, stages] : readers) readers_[root].assign(stages.begin(), stages.end());
}

}  // namespace lockstep::passes
