#include "passes/training/train_step.h"

#include <fnmatch.h>

#include <algorithm>
#include <cmath>
#include <limits>

#include "core/builder.h"
#include "core/op_def.h"
#include "passes/training/autodiff.h"

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

// `next` is the next value of `state`, and named so.
absl::Status SetNext(Graph& graph, Value state, Value next) {
  graph.SetName(next, state.name() + ".next");
  return graph.AddStateResult(state.name(), next);
}

absl::Status AddSgd(Graph& graph, Builder& b, Value state, Value gradient, const OptimizerSpec& spec) {
  if (spec.momentum == 0) {
    const Value next =
        b.Op("sgd", {state, gradient}, {{"learning_rate", spec.learning_rate}, {"weight_decay", spec.weight_decay}});
    RETURN_IF_ERROR(b.status());
    return SetNext(graph, state, next);
  }
  ASSIGN_OR_RETURN(const Value velocity, graph.AddInput(state.name() + "/momentum", state.type(), true));
  const std::vector<Value> next = b.Ops("sgd_momentum", {state, velocity, gradient},
                                        {{"learning_rate", spec.learning_rate},
                                         {"momentum", spec.momentum},
                                         {"weight_decay", spec.weight_decay},
                                         {"nesterov", spec.nesterov}});
  RETURN_IF_ERROR(b.status());
  RETURN_IF_ERROR(SetNext(graph, state, next[0]));
  return SetNext(graph, velocity, next[1]);
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
  RETURN_IF_ERROR(SetNext(graph, state, next[0]));
  RETURN_IF_ERROR(SetNext(graph, m, next[1]));
  return SetNext(graph, v, next[2]);
}

bool Matches(const std::string& pattern, const std::string& name) {
  return pattern == name || fnmatch(pattern.c_str(), name.c_str(), FNM_NOESCAPE) == 0;
}

bool MatchesAny(const std::vector<std::string>& patterns, const std::string& name) {
  return std::any_of(patterns.begin(), patterns.end(), [&](const auto& pattern) { return Matches(pattern, name); });
}

bool MatchesAState(const Graph& graph, const std::string& pattern) {
  return std::any_of(graph.inputs().begin(), graph.inputs().end(),
                     [&](const Input& input) { return input.is_state && Matches(pattern, input.name()); });
}

std::string NamesOfStates(const Graph& graph) {
  std::string names;
  for (const Input& input : graph.inputs()) {
    if (input.is_state) names += (names.empty() ? "" : ", ") + input.name();
  }
  return names.empty() ? "none" : names;
}

absl::Status CheckPatterns(const Graph& graph, std::string_view option, const std::vector<std::string>& patterns) {
  for (const std::string& pattern : patterns) {
    if (MatchesAState(graph, pattern)) continue;
    return NotFound() << option << ": no state of graph @" << graph.name() << " is named '" << pattern
                      << "' or matches it; its states are " << NamesOfStates(graph);
  }
  return absl::OkStatus();
}

// A state to train; one that was named in full must be trainable, one that a pattern matched may be.
struct Candidate {
  Value state;
  bool is_named;
};

absl::StatusOr<std::vector<Candidate>> Candidates(const Graph& graph, const TrainStepSpec& spec) {
  RETURN_IF_ERROR(CheckPatterns(graph, "trained", spec.trained));
  RETURN_IF_ERROR(CheckPatterns(graph, "frozen", spec.frozen));
  const auto lists = [](const std::vector<std::string>& names, const std::string& name) {
    return std::find(names.begin(), names.end(), name) != names.end();
  };
  std::vector<Candidate> candidates;
  for (const Input& input : graph.inputs()) {
    if (!input.is_state) continue;
    const bool is_named = lists(spec.trained, input.name());
    if (is_named && lists(spec.frozen, input.name()))
      return InvalidArgument() << "state %" << input.name() << " is named by trained and by frozen";
    // A state that has a next value already, such as a running statistic, is not trained.
    const bool can_be = IsFloat(input.value.dtype()) && graph.FindResult(input.name(), true) == nullptr;
    const bool wanted = spec.trained.empty() || MatchesAny(spec.trained, input.name());
    if ((is_named || (can_be && wanted)) && !MatchesAny(spec.frozen, input.name()))
      candidates.push_back({input.value, is_named});
  }
  return candidates;
}

absl::Status CheckDropouts(const TrainStepSpec& spec) {
  if (spec.dropouts.empty() || spec.dropout_off) return absl::OkStatus();
  std::string dropouts;
  for (const std::string& dropout : spec.dropouts) dropouts += (dropouts.empty() ? "" : ", ") + dropout;
  return Unimplemented() << "the model drops values at random when it is trained, which is not supported yet: "
                         << dropouts << "; dropout=\"off\" trains it without";
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
    RETURN_IF_ERROR(SetNext(graph, counter, step));
  }
  for (size_t i = 0; i < states.size(); ++i) {
    b.set_source("optimizer of " + states[i].name());
    if (spec.kind == OptimizerSpec::Kind::kSgd) RETURN_IF_ERROR(AddSgd(graph, b, states[i], gradients[i], spec));
    else RETURN_IF_ERROR(AddAdam(graph, b, states[i], step, gradients[i], spec));
  }
  return absl::OkStatus();
}

absl::Status MakeTrainStep(Graph& graph, const TrainStepSpec& spec) {
  RETURN_IF_ERROR(CheckDropouts(spec));
  ASSIGN_OR_RETURN(const Value loss, AddLoss(graph, spec.loss));
  ASSIGN_OR_RETURN(const std::vector<Candidate> candidates, Candidates(graph, spec));
  std::vector<Value> wrt;
  for (const Candidate& candidate : candidates) wrt.push_back(candidate.state);
  ASSIGN_OR_RETURN(const std::vector<Value> gradients, AddGradients(graph, loss, wrt));
  if (!loss.node->Is("input")) graph.SetName(loss, "loss");
  std::vector<Value> states, of_states;
  for (size_t i = 0; i < candidates.size(); ++i) {
    if (!gradients[i] && candidates[i].is_named)
      return InvalidArgument() << "the loss does not depend on state %" << wrt[i].name();
    if (!gradients[i]) continue;
    // Names by which users recognise what is communicated.
    if (!gradients[i].node->Is("input")) graph.SetName(gradients[i], "grad/" + wrt[i].name());
    states.push_back(wrt[i]);
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

std::vector<std::string> StatesTrainedBy(const Graph& graph) {
  std::vector<std::string> names;
  for (const Node& node : graph.nodes()) {
    if (node.op().has_trait(kOptimizer) && node.operand(0).node->Is("input")) names.push_back(node.operand(0).name());
  }
  return names;
}

absl::StatusOr<std::map<std::string, Tensor>> ConstantsToStates(Graph& graph, const std::vector<std::string>& patterns,
                                                                const std::vector<std::string>& constants) {
  std::map<std::string, Tensor> values;
  for (const std::string& pattern : patterns) {
    bool matches = MatchesAState(graph, pattern);
    for (size_t i = 0; i < constants.size() && !matches; ++i) matches = Matches(pattern, constants[i]);
    if (matches) continue;
    ErrorStream error = NotFound() << "trained: nothing in graph @" << graph.name() << " is named '" << pattern
                                   << "' or matches it; its states are " << NamesOfStates(graph);
    for (size_t i = 0; i < constants.size(); ++i) error << (i ? ", " : "; its constants are ") << constants[i];
    return error;
  }
  std::vector<std::string> of_constants;
  for (const std::string& pattern : patterns) {
    if (!MatchesAState(graph, pattern)) of_constants.push_back(pattern);
  }
  std::vector<Node*> nodes;
  for (Node& node : graph.nodes()) {
    if (!node.Is("constant") || !MatchesAny(of_constants, node.result_name())) continue;
    if (std::find(constants.begin(), constants.end(), node.result_name()) != constants.end()) nodes.push_back(&node);
  }
  for (Node* node : nodes) {
    const std::string name = node->result_name();
    graph.SetName(node->result(), name + ".constant");  // its name becomes the state's
    ASSIGN_OR_RETURN(const Value state, graph.AddInput(name, node->type(), /*is_state=*/true));
    values.emplace(name, node->attr<Tensor>("value"));
    graph.ReplaceUses(node->result(), state);
    graph.Erase(node);
  }
  return values;
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
