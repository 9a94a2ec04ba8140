#include "core/ops/scan_gradient.h"

#include <algorithm>
#include <unordered_map>
#include <unordered_set>

#include "core/backpropagate.h"
#include "core/builder.h"
#include "core/ops/op_list.h"
#include "core/ops/scan_parts.h"

namespace lockstep {
namespace {

using ValueSet = std::unordered_set<Value, ValueHash>;

// True if the node is computed again instead of stacked: computing an element costs less than storing and loading it.
bool IsCheap(const Node& node) {
  return node.op().has_trait(kElementwise) || node.op().has_trait(kMovement) || node.op().has_trait(kGenerator);
}

// True for a sum with a term that is not cheap, such as two products and a bias. The sum is stacked instead of its
// terms, which the gradient of a sum does not read.
bool IsSumOfExpensive(const Node& node) {
  if (!node.Is("add") && !node.Is("sub")) return false;
  return std::any_of(node.operands().begin(), node.operands().end(), [](Value operand) {
    if (operand.node->is_input()) return false;
    return !IsCheap(*operand.node) || IsSumOfExpensive(*operand.node);
  });
}

bool IsStacked(const Node& node) { return !IsCheap(node) || IsSumOfExpensive(node); }

absl::StatusOr<Value> AddFreshInput(Graph& graph, const std::string& name, const TensorType& type) {
  std::unordered_set<std::string> taken;
  for (const Input& input : graph.inputs()) taken.insert(input.name());
  for (Node& node : graph.nodes()) {
    for (size_t i = 0; i < node.num_results(); ++i) taken.insert(node.result_name(i));
  }
  std::string fresh = name;
  for (int i = 1; taken.contains(fresh); ++i) fresh = name + "." + std::to_string(i);
  return graph.AddInput(fresh, type);
}

// Collects the terms of a sum. Each is summed over the iterations separately, so that products become one large
// product.
void CollectTerms(Value value, const std::unordered_set<const Node*>& forward, std::vector<Value>& terms) {
  if (value.node->Is("add") && !forward.contains(value.node)) {
    CollectTerms(value.node->operand(0), forward, terms);
    CollectTerms(value.node->operand(1), forward, terms);
  } else {
    terms.push_back(value);
  }
}

class ScanGradient {
 public:
  explicit ScanGradient(VjpContext& c) : c_(c), form_(c.attributes()) {}

  absl::Status Run() {
    FindActiveInputs();
    for (size_t i = 0; i < form_.carried; ++i) reached_.push_back(is_active_[i] && c_.grad(i));
    bool changed = true;
    while (changed) {
      ASSIGN_OR_RETURN(changed, BuildBody());
    }
    RETURN_IF_ERROR(ChooseResults());
    if (parts_.next_carried.empty() && parts_.stacked.empty() && parts_.summed.empty()) return absl::OkStatus();
    FindSaved();
    RETURN_IF_ERROR(MakeForward());
    RETURN_IF_ERROR(ReadSaved());
    return MakeBackward();
  }

 private:
  // Finds the inputs of the body whose gradient is wanted, or through which the gradient of such an input flows.
  void FindActiveInputs();
  // Builds a body with the gradients of the active inputs. Returns true if more carried values turn out to have
  // gradients.
  absl::StatusOr<bool> BuildBody();
  absl::StatusOr<Value> AddSeed(const std::string& name, size_t result);
  absl::Status ChooseResults();
  void FindSaved();
  absl::Status MakeForward();
  absl::Status ReadSaved();
  absl::Status MakeBackward();

  Value Inner(size_t input) const { return body_.inputs()[input].value; }

  VjpContext& c_;
  const ScanForm form_;
  std::vector<bool> is_active_;  // by input of the body
  std::vector<bool> reached_;    // by carried value: true if a gradient flows into it from later iterations

  Graph body_;  // the nodes of the forward body, then those of its gradient
  std::unordered_set<const Node*> forward_;
  std::vector<Value> gradients_;  // by input of the body; null if it has none
  std::vector<GradientOf> seeds_;
  ScanParts parts_;                                                // of the backward scan
  std::vector<std::pair<size_t, size_t>> stacked_of_, summed_of_;  // operand, and index among stacked or summed results
  std::vector<Value> saved_;                                       // values of the forward body that the gradient reads
  std::vector<Value> saved_stacks_;
};

void ScanGradient::FindActiveInputs() {
  for (size_t i = 0; i < form_.num_inputs(); ++i)
    is_active_.push_back(c_.is_needed(i) && IsFloat(form_.body->inputs()[i].value.dtype()));
  for (bool changed = true; changed;) {
    changed = false;
    ValueSet dependent;
    for (size_t i = 0; i < form_.num_inputs(); ++i) {
      if (is_active_[i]) dependent.insert(form_.body->inputs()[i].value);
    }
    for (const Node& node : form_.body->nodes()) {
      const auto depends = [&](Value operand) { return dependent.contains(operand); };
      if (!std::any_of(node.operands().begin(), node.operands().end(), depends)) continue;
      for (size_t i = 0; i < node.num_results(); ++i) {
        if (IsFloat(node.type(i).dtype)) dependent.insert(const_cast<Node&>(node).result(i));
      }
    }
    for (size_t i = 0; i < form_.carried; ++i) {
      if (is_active_[i] || !dependent.contains(form_.body->results()[i].value)) continue;
      is_active_[i] = changed = true;
    }
  }
}

absl::StatusOr<Value> ScanGradient::AddSeed(const std::string& name, size_t result) {
  const Value value = body_.results()[result].value;
  ASSIGN_OR_RETURN(const Value seed, AddFreshInput(body_, "gradient/" + name, value.type()));
  seeds_.push_back({value, seed});
  return seed;
}

absl::StatusOr<bool> ScanGradient::BuildBody() {
  body_ = form_.body->Clone();
  forward_.clear();
  seeds_.clear();
  parts_ = ScanParts();
  Builder b(body_, nullptr, c_.b().source());
  const Value end = b.Constant(Tensor::Scalar(DType::kBool, 0));  // marks the end of the body's own nodes
  RETURN_IF_ERROR(b.status());
  for (size_t i = 0; i < form_.num_results(); ++i) {
    const std::string& name = form_.body->results()[i].value.name();
    if (i < form_.carried ? !reached_[i] : !c_.grad(i)) continue;
    ASSIGN_OR_RETURN(const Value seed, AddSeed(name, i));
    if (i < form_.carried) {
      const Value last = c_.grad(i) ? c_.grad(i) : c_.b().SplatLike(0.0, c_.result(i));
      parts_.carried.push_back({last, seed});
    } else {
      (form_.is_stacked(i) ? parts_.scanned : parts_.constants).push_back({c_.grad(i), seed});
    }
  }
  std::vector<Value> wrt;
  for (size_t i = 0; i < form_.num_inputs(); ++i) {
    if (is_active_[i]) wrt.push_back(Inner(i));
  }
  ASSIGN_OR_RETURN(const std::vector<Value> gradients, Backpropagate(body_, seeds_, wrt));
  for (const Node& node : body_.nodes()) {
    if (&node == end.node) break;
    forward_.insert(&node);
  }
  gradients_.assign(form_.num_inputs(), Value());
  for (size_t i = 0, at = 0; i < form_.num_inputs(); ++i) {
    if (is_active_[i]) gradients_[i] = gradients[at++];
  }
  bool changed = false;
  for (size_t i = 0; i < form_.carried; ++i) {
    if (!gradients_[i] || reached_[i]) continue;
    reached_[i] = changed = true;
  }
  return changed;
}

absl::Status ScanGradient::ChooseResults() {
  Builder b(body_, nullptr, c_.b().source());
  for (size_t i = 0; i < form_.num_inputs(); ++i) {
    if (i < form_.carried) {
      if (reached_[i]) parts_.next_carried.push_back(gradients_[i] ? gradients_[i] : b.SplatLike(0.0, Inner(i)));
    } else if (gradients_[i] && c_.is_needed(i) && form_.is_scanned(i)) {
      stacked_of_.emplace_back(i, parts_.stacked.size());
      parts_.stacked.push_back(gradients_[i]);
    } else if (gradients_[i] && c_.is_needed(i)) {
      std::vector<Value> terms;
      CollectTerms(gradients_[i], forward_, terms);
      for (Value term : terms) {
        summed_of_.emplace_back(i, parts_.summed.size());
        parts_.summed.push_back(term);
      }
    }
  }
  return b.status();
}

void ScanGradient::FindSaved() {
  ValueSet seen, carried;
  for (size_t i = 0; i < form_.carried; ++i) carried.insert(Inner(i));
  std::vector<Value> open;
  for (const auto* group : {&parts_.next_carried, &parts_.stacked, &parts_.summed})
    open.insert(open.end(), group->begin(), group->end());
  while (!open.empty()) {
    const Value value = open.back();
    open.pop_back();
    if (!seen.insert(value).second) continue;
    if (carried.contains(value) || (forward_.contains(value.node) && IsStacked(*value.node))) {
      saved_.push_back(value);
    } else {
      open.insert(open.end(), value.node->operands().begin(), value.node->operands().end());
    }
  }
}

// Replaces the scan by one that also stacks the values that its gradient reads.
absl::Status ScanGradient::MakeForward() {
  if (saved_.empty()) return absl::OkStatus();
  ScanParts parts;
  for (size_t i = 0; i < form_.num_inputs(); ++i) {
    auto& group = i < form_.carried ? parts.carried : form_.is_scanned(i) ? parts.scanned : parts.constants;
    group.push_back({c_.operand(i), Inner(i)});
  }
  for (size_t i = 0; i < form_.num_results(); ++i) {
    auto& group = i < form_.carried ? parts.next_carried : form_.is_stacked(i) ? parts.stacked : parts.summed;
    group.push_back(body_.results()[i].value);
  }
  std::vector<size_t> stack_of_saved, of_results;
  for (Value value : saved_) {
    const auto found = std::find(parts.stacked.begin(), parts.stacked.end(), value);
    stack_of_saved.push_back(form_.carried + static_cast<size_t>(found - parts.stacked.begin()));
    if (found != parts.stacked.end()) continue;
    parts.stacked_names.resize(parts.stacked.size());
    parts.stacked_names.push_back(value.name());
    parts.stacked.push_back(value);
  }
  const size_t added = parts.stacked.size() - form_.stacked();
  for (size_t i = 0; i < form_.num_results(); ++i) of_results.push_back(i < form_.first_summed() ? i : i + added);
  const std::string source = c_.result(0).node->source();
  ASSIGN_OR_RETURN(NodeSpec spec, MakeScan(body_, parts, form_.length, form_.reverse, source));
  ASSIGN_OR_RETURN(Node* const node, c_.Replace(std::move(spec), of_results));
  for (size_t at : stack_of_saved) saved_stacks_.push_back(node->result(at));
  return absl::OkStatus();
}

absl::Status ScanGradient::ReadSaved() {
  for (size_t i = 0; i < saved_.size(); ++i) {
    ASSIGN_OR_RETURN(const Value input, AddFreshInput(body_, "saved/" + saved_[i].name(), saved_[i].type()));
    body_.ReplaceUses(saved_[i], input);
    for (auto* group : {&parts_.next_carried, &parts_.stacked, &parts_.summed})
      std::replace(group->begin(), group->end(), saved_[i], input);
    parts_.scanned.push_back({saved_stacks_[i], input});
  }
  for (size_t i = form_.carried; i < form_.num_inputs(); ++i)
    (form_.is_scanned(i) ? parts_.scanned : parts_.constants).push_back({c_.operand(i), Inner(i)});
  return absl::OkStatus();
}

absl::Status ScanGradient::MakeBackward() {
  body_.set_name(form_.body->name() + "_gradient");
  ASSIGN_OR_RETURN(NodeSpec spec, MakeScan(body_, parts_, form_.length, !form_.reverse, ""));
  const std::vector<Value> results = c_.b().Ops("scan", std::move(spec.operands), std::move(spec.attributes));
  RETURN_IF_ERROR(c_.b().status());
  size_t carried = 0;
  for (size_t i = 0; i < form_.carried; ++i) {
    if (!reached_[i]) continue;
    c_.Contribute(i, results[carried++]);
  }
  for (const auto& [operand, at] : stacked_of_) c_.Contribute(operand, results[carried + at]);
  for (const auto& [operand, at] : summed_of_) c_.Contribute(operand, results[carried + parts_.stacked.size() + at]);
  return absl::OkStatus();
}

}  // namespace

void ScanVjp(VjpContext& c) { c.b().Fail(ScanGradient(c).Run()); }

}  // namespace lockstep
