#include "passes/train_step.h"

#include <cmath>
#include <limits>

#include "core/builder.h"
#include "passes/autodiff.h"

namespace lockstep::passes {
namespace {

absl::StatusOr<Value> Target(Graph& graph, const std::string& name, const TensorType& type,
                             const PlacementMap& placements) {
  if (const Input* input = graph.FindInput(name)) {
    if (input->value.type() != type) {
      return InvalidArgument() << "loss target %" << name << " is " << input->value.type() << ", expected " << type;
    }
    return input->value;
  }
  return graph.AddInput(name, type, false, placements);
}

// The batch of a prediction is the batch of the model's data inputs: those with as many rows that are split along them.
PlacementMap BatchPlacement(const Graph& graph, const Value prediction) {
  for (const Input& input : graph.inputs()) {
    const Placement placement = input.value.placement(kDataAxis);
    if (input.is_state || !placement.is_split(0)) continue;
    if (prediction.shape().rank() > 0 && prediction.shape()[0] == input.value.shape()[0])
      return {{std::string(kDataAxis), placement}};
  }
  return {};
}

// A number on (0, inf), or [0, inf) if `zero`.
absl::Status CheckRange(std::string_view name, double value, bool zero, double limit) {
  if ((zero ? value >= 0 : value > 0) && value < limit) return absl::OkStatus();
  ErrorStream error = InvalidArgument() << "optimizer: " << name << " is " << value << ", expected a finite number "
                                        << (zero ? "of at least 0" : "above 0");
  if (std::isfinite(limit)) error << " and below " << limit;
  return error;
}

absl::Status CheckOptimizer(const OptimizerSpec& spec) {
  constexpr double kInfinity = std::numeric_limits<double>::infinity();
  RETURN_IF_ERROR(CheckRange("learning_rate", spec.learning_rate, true, kInfinity));
  RETURN_IF_ERROR(CheckRange("weight_decay", spec.weight_decay, true, kInfinity));
  if (spec.kind == OptimizerSpec::Kind::kSgd) {
    if (spec.nesterov && spec.momentum == 0) return InvalidArgument() << "optimizer: nesterov needs a momentum";
    return CheckRange("momentum", spec.momentum, true, kInfinity);
  }
  RETURN_IF_ERROR(CheckRange("beta1", spec.beta1, true, 1));
  RETURN_IF_ERROR(CheckRange("beta2", spec.beta2, true, 1));
  return CheckRange("epsilon", spec.epsilon, false, kInfinity);
}

absl::Status AddSgd(Graph& graph, Builder& b, Value state, Value gradient, const OptimizerSpec& spec) {
  if (spec.momentum == 0) {
    const Value next =
        b.Op("sgd", {state, gradient}, {{"learning_rate", spec.learning_rate}, {"weight_decay", spec.weight_decay}});
    RETURN_IF_ERROR(b.status());
    return graph.AddStateResult(state.name(), next);
  }
  ASSIGN_OR_RETURN(const Value velocity, graph.AddInput(state.name() + "/momentum", state.type(), true));
  const std::vector<Value> next = b.Ops("sgd_momentum", {state, velocity, gradient},
                                        {{"learning_rate", spec.learning_rate},
                                         {"momentum", spec.momentum},
                                         {"weight_decay", spec.weight_decay},
                                         {"nesterov", spec.nesterov}});
  RETURN_IF_ERROR(b.status());
  RETURN_IF_ERROR(graph.AddStateResult(state.name(), next[0]));
  return graph.AddStateResult(velocity.name(), next[1]);
}

absl::Status AddAdam(Graph& graph, Builder& b, Value state, Value step, Value gradient, const OptimizerSpec& spec) {
  ASSIGN_OR_RETURN(const Value m, graph.AddInput(state.name() + "/adam_m", state.type(), true));
  ASSIGN_OR_RETURN(const Value v, graph.AddInput(state.name() + "/adam_v", state.type(), true));
  const std::vector<Value> next = b.Ops("adam", {state, m, v, step, gradient},
                                        {{"learning_rate", spec.learning_rate},
                                         {"beta1", spec.beta1},
                                         {"beta2", spec.beta2},
                                         {"epsilon", spec.epsilon},
                                         {"weight_decay", spec.weight_decay},
                                         {"decoupled", spec.kind == OptimizerSpec::Kind::kAdamW}});
  RETURN_IF_ERROR(b.status());
  RETURN_IF_ERROR(graph.AddStateResult(state.name(), next[0]));
  RETURN_IF_ERROR(graph.AddStateResult(m.name(), next[1]));
  return graph.AddStateResult(v.name(), next[2]);
}

absl::StatusOr<std::vector<Value>> TrainedStates(const Graph& graph, const std::vector<std::string>& names) {
  std::vector<Value> states;
  for (const std::string& name : names) {
    const Input* input = graph.FindInput(name);
    if (!input || !input->is_state)
      return NotFound() << "graph @" << graph.name() << " has no state %" << name << " to train";
    states.push_back(input->value);
  }
  for (const Input& input : graph.inputs()) {
    // A state that has a next value already, such as a running statistic, is not trained.
    const bool updated = graph.FindResult(input.name(), true) != nullptr;
    if (names.empty() && input.is_state && !updated && IsFloat(input.value.dtype())) states.push_back(input.value);
  }
  return states;
}

}  // namespace

absl::StatusOr<Value> AddLoss(Graph& graph, const LossSpec& spec) {
  const Result* result = graph.FindResult(spec.prediction);
  if (!result) {
    std::string names;
    for (const Result& r : graph.results()) names += (names.empty() ? "" : ", ") + r.name;
    return NotFound() << "loss: the model has no result '" << spec.prediction << "'; it has: " << names;
  }
  const Value prediction = result->value;
  Builder b(graph, nullptr, "loss");
  if (spec.kind == LossSpec::Kind::kResult) return prediction;
  if (prediction.shape().rank() < 1)
    return InvalidArgument() << "loss: result " << spec.prediction << " is the scalar " << prediction.type();
  const PlacementMap placements = BatchPlacement(graph, prediction);
  if (spec.kind == LossSpec::Kind::kMeanSquaredError) {
    ASSIGN_OR_RETURN(const Value target, Target(graph, spec.target, prediction.type(), placements));
    const Value difference = b.Sub(prediction, target);
    std::vector<int64_t> dims;
    for (int64_t i = 0; i < prediction.shape().rank(); ++i) dims.push_back(i);
    const Value loss = b.ReduceMean(b.Mul(difference, difference), dims);
    RETURN_IF_ERROR(b.status());
    return loss;
  }
  if (prediction.shape().rank() < 2)
    return InvalidArgument() << "loss: softmax cross-entropy of " << prediction.type() << ", expected [batch, classes]";
  const TensorType labels{DType::kI64, prediction.shape().Without({1})};
  ASSIGN_OR_RETURN(const Value target, Target(graph, spec.target, labels, placements));
  const double samples = static_cast<double>(labels.num_elements());  // of the global batch
  const Value loss = b.Op("softmax_cross_entropy", {prediction, target}, {{"scale", 1.0 / samples}});
  RETURN_IF_ERROR(b.status());
  return loss;
}

absl::Status AddOptimizer(Graph& graph, const std::vector<Value>& states, const std::vector<Value>& gradients,
                          const OptimizerSpec& spec) {
  RETURN_IF_ERROR(CheckOptimizer(spec));
  Builder b(graph);
  Value step;
  if (spec.kind != OptimizerSpec::Kind::kSgd && !states.empty()) {
    b.set_source("optimizer");
    ASSIGN_OR_RETURN(const Value counter, graph.AddInput("optimizer/step", TensorType{DType::kI64, Shape()}, true));
    step = b.AddScalar(counter, 1);
    RETURN_IF_ERROR(b.status());
    RETURN_IF_ERROR(graph.AddStateResult("optimizer/step", step));
  }
  for (size_t i = 0; i < states.size(); ++i) {
    b.set_source("optimizer of " + states[i].name());
    if (spec.kind == OptimizerSpec::Kind::kSgd) RETURN_IF_ERROR(AddSgd(graph, b, states[i], gradients[i], spec));
    else RETURN_IF_ERROR(AddAdam(graph, b, states[i], step, gradients[i], spec));
  }
  return absl::OkStatus();
}

absl::Status MakeTrainStep(Graph& graph, const TrainStepSpec& spec) {
  ASSIGN_OR_RETURN(const Value loss, AddLoss(graph, spec.loss));
  ASSIGN_OR_RETURN(const std::vector<Value> candidates, TrainedStates(graph, spec.trained));
  ASSIGN_OR_RETURN(const std::vector<Value> gradients, AddGradients(graph, loss, candidates));
  if (!loss.node->Is("input")) graph.SetName(loss, "loss");
  std::vector<Value> states, of_states;
  for (size_t i = 0; i < candidates.size(); ++i) {
    if (!gradients[i] && !spec.trained.empty())
      return InvalidArgument() << "the loss does not depend on state %" << candidates[i].name();
    if (!gradients[i]) continue;
    // Names by which users recognise what is communicated.
    if (!gradients[i].node->Is("input")) graph.SetName(gradients[i], "grad/" + candidates[i].name());
    states.push_back(candidates[i]);
    of_states.push_back(gradients[i]);
  }
  if (states.empty()) return InvalidArgument() << "the loss depends on no trainable state of graph @" << graph.name();
  for (size_t i = graph.results().size(); i-- > 0;) {
    if (!graph.results()[i].is_state && !spec.keep_results) graph.RemoveResult(i);
  }
  const bool is_own_result =
      spec.loss.kind == LossSpec::Kind::kResult && spec.keep_results && spec.loss.prediction == "loss";
  if (!is_own_result) RETURN_IF_ERROR(graph.AddResult("loss", loss));
  return AddOptimizer(graph, states, of_states, spec.optimizer);
}

Pass TrainStep(TrainStepSpec spec) {
  return {"train-step",
          [spec = std::move(spec)](Graph& graph) -> absl::StatusOr<bool> {
            RETURN_IF_ERROR(MakeTrainStep(graph, spec));
            return true;
          },
          Keeps::kNothing};
}

}  // namespace lockstep::passes
