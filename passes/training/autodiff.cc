#include "passes/training/autodiff.h"

#include <unordered_map>
#include <unordered_set>

#include "core/builder.h"
#include "core/op_def.h"

namespace lockstep::passes {
namespace {

using ValueSet = std::unordered_set<Value, ValueHash>;

// The float values that depend on `wrt` through floats.
ValueSet DependentValues(Graph& graph, const std::vector<Value>& wrt) {
  ValueSet dependent(wrt.begin(), wrt.end());
  for (Node& node : graph.nodes()) {
    bool depends = false;
    for (Value operand : node.operands()) depends |= dependent.contains(operand);
    if (!depends) continue;
    for (size_t i = 0; i < node.num_results(); ++i) {
      if (IsFloat(node.type(i).dtype)) dependent.insert(node.result(i));
    }
  }
  return dependent;
}

class Reverse {
 public:
  Reverse(Graph& graph, const std::vector<Value>& wrt) : dependent_(DependentValues(graph, wrt)), builder_(graph) {}

  absl::StatusOr<std::vector<Value>> Run(Value of, const std::vector<Value>& wrt) {
    // The nodes there are now, last first; what is built meanwhile is appended and not visited.
    std::vector<Node*> nodes;
    for (Node& node : builder_.graph().nodes()) nodes.push_back(&node);
    if (dependent_.contains(of)) gradients_[of] = builder_.SplatLike(1.0, of);
    for (auto it = nodes.rbegin(); it != nodes.rend(); ++it) RETURN_IF_ERROR(Visit(**it));
    RETURN_IF_ERROR(builder_.status());
    std::vector<Value> results;
    for (Value value : wrt) {
      const auto found = gradients_.find(value);
      if (found == gradients_.end()) RETURN_IF_ERROR(CheckNotZero(value));
      results.push_back(found == gradients_.end() ? Value() : found->second);
    }
    return results;
  }

 private:
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
      steps_.push_back(&node);  // its derivative is zero; CheckNotZero says where nothing else is left
      return absl::OkStatus();
    }
    if (!node.op().vjp()) {
      return InvalidArgument() << node.Describe() << " has no gradient: " << node.op().no_gradient();
    }
    builder_.set_source(node.source().empty() ? "gradient of %" + node.result_name() : "gradient of " + node.source());
    std::vector<std::vector<Value>> contributions(node.operands().size());
    VjpContext context(node, grads, builder_, contributions);
    node.op().vjp()(context);
    RETURN_IF_ERROR(builder_.status());
    for (size_t i = 0; i < contributions.size(); ++i) {
      const Value operand = node.operand(i);
      if (!dependent_.contains(operand)) continue;
      for (Value contribution : contributions[i]) {
        Value& sum = gradients_[operand];
        sum = sum ? builder_.Add(sum, contribution) : contribution;
      }
    }
    return builder_.status();
  }

  // Of a value that has no gradient: an error if a step function is on the way to it.
  absl::Status CheckNotZero(Value value) {
    if (steps_.empty()) return absl::OkStatus();
    const ValueSet dependent = DependentValues(builder_.graph(), {value});
    for (const Node* step : steps_) {
      if (!dependent.contains(step->operand(0))) continue;
      return InvalidArgument() << "the gradient with respect to %" << value.name() << " is zero everywhere, as "
                               << step->Describe() << " is on its only way: " << step->op().no_gradient();
    }
    return absl::OkStatus();
  }

  ValueSet dependent_;
  std::vector<const Node*> steps_;  // that a gradient arrived at
  Builder builder_;
  std::unordered_map<Value, Value, ValueHash> gradients_;
};

}  // namespace

absl::StatusOr<std::vector<Value>> AddGradients(Graph& graph, Value of, const std::vector<Value>& wrt) {
  if (of.shape().rank() != 0 || !IsFloat(of.dtype())) {
    return InvalidArgument() << "gradients are taken of a float scalar; %" << of.name() << " is " << of.type();
  }
  for (Value value : wrt) {
    if (!IsFloat(value.dtype()))
      return InvalidArgument() << "no gradient with respect to %" << value.name() << " of type " << value.type();
  }
  return Reverse(graph, wrt).Run(of, wrt);
}

namespace {

// The inputs that `names` names, or every float state if there is none.
absl::StatusOr<std::vector<Value>> InputsNamed(const Graph& graph, const std::vector<std::string>& names) {
  std::vector<Value> inputs;
  for (const std::string& name : names) {
    const Input* input = graph.FindInput(name);
    if (!input) return NotFound() << "graph @" << graph.name() << " has no input %" << name;
    inputs.push_back(input->value);
  }
  for (const Input& input : graph.inputs()) {
    if (names.empty() && input.is_state && IsFloat(input.value.dtype())) inputs.push_back(input.value);
  }
  return inputs;
}

absl::StatusOr<bool> AddGradientsAsResults(Graph& graph, const std::string& of, const std::vector<std::string>& wrt) {
  const Result* loss = graph.FindResult(of);
  if (!loss) return NotFound() << "graph @" << graph.name() << " has no result " << of;
  ASSIGN_OR_RETURN(const std::vector<Value> inputs, InputsNamed(graph, wrt));
  ASSIGN_OR_RETURN(const std::vector<Value> gradients, AddGradients(graph, loss->value, inputs));
  for (size_t i = 0; i < inputs.size(); ++i) {
    if (!gradients[i]) return InvalidArgument() << "result " << of << " does not depend on %" << inputs[i].name();
    RETURN_IF_ERROR(graph.AddResult("grad/" + inputs[i].name(), gradients[i]));
  }
  return !inputs.empty();
}

}  // namespace

Pass Autodiff(std::string of, std::vector<std::string> wrt) {
  return {"autodiff",
          [of = std::move(of), wrt = std::move(wrt)](Graph& graph) { return AddGradientsAsResults(graph, of, wrt); },
          Keeps::kResults};
}

}  // namespace lockstep::passes
