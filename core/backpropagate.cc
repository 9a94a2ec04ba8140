#include "core/backpropagate.h"

#include <algorithm>
#include <unordered_map>
#include <unordered_set>
#include <utility>

#include "core/builder.h"
#include "core/op_def.h"

namespace lockstep {
namespace {

using ValueSet = std::unordered_set<Value, ValueHash>;

// The float values that depend on `wrt` through floats.
ValueSet DependentValues(Graph& graph, const std::vector<Value>& wrt) {
  ValueSet dependent(wrt.begin(), wrt.end());
  for (Node& node : graph.nodes()) {
    if (node.op().has_trait(kEndsGradients)) continue;
    bool depends = false;
    for (Value operand : node.operands()) depends |= dependent.contains(operand);
    if (!depends) continue;
    for (size_t i = 0; i < node.num_results(); ++i) {
      if (IsFloat(node.type(i).dtype)) dependent.insert(node.result(i));
    }
  }
  return dependent;
}

// Returns the dimension along which the operand of `second` directly follows that of `first`, if both are `pad`s with
// zeros and equal along all other dimensions; else -1.
int64_t AdjacentDim(const Node& first, const Node& second) {
  using Ints = std::vector<int64_t>;
  if (!first.Is("pad") || !second.Is("pad") || first.type() != second.type()) return -1;
  if (first.attr<double>("value") != 0 || second.attr<double>("value") != 0) return -1;
  const Ints &low1 = first.attr<Ints>("low"), &low2 = second.attr<Ints>("low");
  const Ints &high1 = first.attr<Ints>("high"), &high2 = second.attr<Ints>("high");
  int64_t meets = -1;
  for (size_t d = 0; d < low1.size(); ++d) {
    if (low1[d] == low2[d] && high1[d] == high2[d]) continue;
    if (meets >= 0 || low1[d] + first.operand(0).shape()[static_cast<int64_t>(d)] != low2[d]) return -1;
    meets = static_cast<int64_t>(d);
  }
  return meets;
}

// Joins the gradients of two adjacent slices of one value. This is cheaper than the sum of two tensors that are mostly
// zeros. Returns null if `x` and `y` are not such gradients.
Value JoinAdjacentPads(Builder& b, Value x, Value y) {
  using Ints = std::vector<int64_t>;
  int64_t dim = AdjacentDim(*x.node, *y.node);
  if (dim < 0) {
    dim = AdjacentDim(*y.node, *x.node);
    std::swap(x, y);
  }
  if (dim < 0) return Value();
  std::vector<Value> parts;
  for (Value pad : {x, y}) {
    const Value part = pad.node->operand(0);
    const bool is_concat = part.node->Is("concat") && part.node->attr<int64_t>("dim") == dim;
    if (is_concat) parts.insert(parts.end(), part.node->operands().begin(), part.node->operands().end());
    else parts.push_back(part);
  }
  Ints low = x.node->attr<Ints>("low"), high = y.node->attr<Ints>("high");
  const Value joined = b.Concat(std::move(parts), dim);
  const auto is_zero = [](int64_t extent) { return extent == 0; };
  if (std::all_of(low.begin(), low.end(), is_zero) && std::all_of(high.begin(), high.end(), is_zero)) return joined;
  return b.Pad(joined, std::move(low), std::move(high));
}

class Reverse {
 public:
  Reverse(Graph& graph, const std::vector<Value>& wrt) : dependent_(DependentValues(graph, wrt)), builder_(graph) {}

  absl::StatusOr<std::vector<Value>> Run(const std::vector<GradientOf>& known, const std::vector<Value>& wrt) {
    // Only the nodes that exist now are visited, in reverse order. Nodes built meanwhile are appended and not visited.
    std::vector<Node*> nodes;
    for (Node& node : builder_.graph().nodes()) nodes.push_back(&node);
    for (const GradientOf& one : known) {
      if (dependent_.contains(one.value)) Add(one.value, one.gradient);
    }
    for (auto it = nodes.rbegin(); it != nodes.rend(); ++it) RETURN_IF_ERROR(Visit(**it));
    RETURN_IF_ERROR(builder_.status());
    std::vector<Value> results;
    for (Value value : wrt) {
      const auto found = gradients_.find(value);
      if (found == gradients_.end()) RETURN_IF_ERROR(CheckNotZero(value));
      results.push_back(found == gradients_.end() ? Value() : found->second);
    }
    EraseReplaced(wrt, results);
    return results;
  }

 private:
  void Add(Value value, Value contribution) {
    Value& sum = gradients_[value];
    if (!sum) {
      sum = contribution;
    } else {
      const Value joined = JoinAdjacentPads(builder_, sum, contribution);
      sum = joined ? joined : builder_.Add(sum, contribution);
    }
  }

  absl::Status Visit(Node& node) {
    std::vector<Value> grads;
    bool any_grad = false;
    for (size_t i = 0; i < node.num_results(); ++i) {
      const auto it = gradients_.find(node.result(i));
      grads.push_back(it == gradients_.end() ? Value() : it->second);
      any_grad |= static_cast<bool>(grads.back());
    }
    if (!any_grad) return absl::OkStatus();
    if (node.op().has_trait(kSteps)) {
      steps_.push_back(&node);  // its derivative is zero; CheckNotZero fails if no other path gives a gradient
      return absl::OkStatus();
    }
    if (!node.op().vjp()) {
      return InvalidArgument() << node.Describe() << " has no gradient: " << node.op().no_gradient();
    }
    builder_.set_source(node.source().empty() ? "gradient of %" + node.result_name() : "gradient of " + node.source());
    std::vector<bool> needed;
    for (Value operand : node.operands()) needed.push_back(dependent_.contains(operand));
    std::vector<std::vector<Value>> contributions(node.operands().size());
    VjpContext context(node, grads, builder_, contributions, std::move(needed));
    node.op().vjp()(context);
    RETURN_IF_ERROR(builder_.status());
    if (context.is_replaced()) replaced_.push_back(&node);
    for (size_t i = 0; i < contributions.size(); ++i) {
      const Value operand = node.operand(i);
      if (!dependent_.contains(operand)) continue;
      for (Value contribution : contributions[i]) Add(operand, contribution);
    }
    return builder_.status();
  }

  // Returns an error if `value`, which has no gradient, reaches the loss through a step function.
  absl::Status CheckNotZero(Value value) {
    if (steps_.empty()) return absl::OkStatus();
    const ValueSet dependent = DependentValues(builder_.graph(), {value});
    for (const Node* step : steps_) {
      if (!dependent.contains(step->operand(0))) continue;
      return InvalidArgument() << "the gradient with respect to %" << value.name() << " is zero everywhere, because "
                               << step->Describe() << " is on its only path: " << step->op().no_gradient();
    }
    return absl::OkStatus();
  }

  // Called at the end, because until then values are found by the addresses of their nodes.
  void EraseReplaced(const std::vector<Value>& wrt, const std::vector<Value>& results) {
    for (Node* node : replaced_) {
      bool is_used = false;
      for (size_t i = 0; i < node->num_results(); ++i) {
        const Value value = node->result(i);
        is_used = is_used || builder_.graph().IsUsed(value) || std::find(wrt.begin(), wrt.end(), value) != wrt.end() ||
                  std::find(results.begin(), results.end(), value) != results.end();
      }
      if (!is_used) builder_.graph().Erase(node);
    }
  }

  ValueSet dependent_;
  std::vector<const Node*> steps_;  // step functions that a gradient reached
  Builder builder_;
  std::unordered_map<Value, Value, ValueHash> gradients_;
  std::vector<Node*> replaced_;
};

}  // namespace

absl::StatusOr<std::vector<Value>> Backpropagate(Graph& graph, const std::vector<GradientOf>& known,
                                                 const std::vector<Value>& wrt) {
  return Reverse(graph, wrt).Run(known, wrt);
}

}  // namespace lockstep
