#include "passes/training/train_step.h"

#include <fnmatch.h>

#include <algorithm>
#include <optional>

#include "core/builder.h"
#include "core/op_def.h"
#include "core/random.h"
#include "core/verifier.h"
#include "passes/optimize/recognize_attention.h"
#include "passes/optimize/separate_rows.h"
#include "passes/state_names.h"
#include "passes/training/accumulate.h"
#include "passes/training/autodiff.h"
#include "passes/training/averaging.h"
#include "passes/training/inference_mode.h"
#include "passes/training/late_mean.h"
#include "passes/training/loss_scaling.h"
#include "passes/training/precision.h"
#include "passes/training/uneven.h"

namespace lockstep::passes {
namespace {

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

bool MatchesOneOf(const std::vector<std::string>& names, const std::string& pattern) {
  return std::any_of(names.begin(), names.end(), [&](const std::string& name) { return Matches(pattern, name); });
}

std::string NamesOfStates(const Graph& graph) {
  std::string names;
  for (const Input& input : graph.inputs()) {
    if (input.is_state) names += (names.empty() ? "" : ", ") + input.name();
  }
  return names.empty() ? "none" : names;
}

std::string NamesOf(const std::vector<Value>& values) {
  std::string names;
  for (Value value : values) names += (names.empty() ? "" : ", ") + value.name();
  return names;
}

absl::Status CheckPatterns(const Graph& graph, std::string_view option, const std::vector<std::string>& patterns) {
  for (const std::string& pattern : patterns) {
    if (MatchesAState(graph, pattern)) continue;
    return NotFound() << option << ": no state of graph @" << graph.name() << " is named '" << pattern
                      << "' or matches it; its states are " << NamesOfStates(graph);
  }
  return absl::OkStatus();
}

// A state to train. It is an error if a state that was named in full cannot be trained; a state that a pattern matched
// is then left out.
struct TrainedCandidate {
  Value state;
  bool is_named;
};

absl::StatusOr<std::vector<TrainedCandidate>> Candidates(const Graph& graph, const TrainStepSpec& spec) {
  RETURN_IF_ERROR(CheckPatterns(graph, "trained", spec.trained));
  RETURN_IF_ERROR(CheckPatterns(graph, "frozen", spec.frozen));
  const auto lists = [](const std::vector<std::string>& names, const std::string& name) {
    return std::find(names.begin(), names.end(), name) != names.end();
  };
  std::vector<TrainedCandidate> candidates;
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
  if (candidates.empty() && !spec.frozen.empty())
    return InvalidArgument() << "frozen leaves no state of graph @" << graph.name() << " to train";
  return candidates;
}

// Returns an error if a dropout was not put into training mode: the step would silently train without it.
absl::Status CheckDropouts(const Graph& graph) {
  for (const Node& node : graph.nodes()) {
    const Node* const dropout = FindDropout(node);
    if (dropout == nullptr) continue;
    return FailedPrecondition() << dropout->Describe()
                                << " is not in training mode; run the pass training-mode first, which makes it drop "
                                << "elements or, with dropout=off, removes it";
  }
  return absl::OkStatus();
}

// Adds the optimizer of each group, and the one of all other states.
absl::Status AddOptimizers(Graph& graph, const std::vector<Value>& states, const std::vector<Value>& gradients,
                           const TrainStepSpec& spec) {
  std::vector<bool> has_group(states.size(), false);
  for (size_t g = 0; g <= spec.groups.size(); ++g) {
    const OptimizerGroup* const group = g < spec.groups.size() ? &spec.groups[g] : nullptr;
    std::vector<Value> of_group, their_gradients;
    for (size_t i = 0; i < states.size(); ++i) {
      if (has_group[i] || (group != nullptr && !Matches(group->states, states[i].name()))) continue;
      has_group[i] = true;
      of_group.push_back(states[i]);
      their_gradients.push_back(gradients[i]);
    }
    if (group == nullptr) return AddOptimizer(graph, of_group, their_gradients, spec.optimizer);
    if (of_group.empty()) {
      return NotFound() << "groups: no trained state that is in no earlier group is named '" << group->states
                        << "' or matches it; the trained states are " << NamesOf(states);
    }
    RETURN_IF_ERROR(
        Annotate(AddOptimizer(graph, of_group, their_gradients, group->optimizer, "optimizer/" + group->states),
                 "group '" + group->states + "'"));
  }
  return absl::OkStatus();
}

// Returns the exchange of each state; null: none.
absl::StatusOr<std::vector<const ExchangeSpec*>> ExchangesOf(const std::vector<Value>& states,
                                                             const std::vector<ExchangeSpec>& exchanges) {
  std::vector<const ExchangeSpec*> found(states.size(), nullptr);
  for (const ExchangeSpec& exchange : exchanges) {
    bool matches = false;
    for (size_t i = 0; i < states.size(); ++i) {
      if (found[i] || !Matches(exchange.states, states[i].name())) continue;
      found[i] = &exchange;
      matches = true;
    }
    if (!matches) {
      return NotFound() << "exchange: no trained state that no earlier entry matches is named '" << exchange.states
                        << "' or matches it; the trained states are " << NamesOf(states);
    }
  }
  for (const ExchangeSpec*& exchange : found) {
    if (exchange && exchange->by.empty()) exchange = nullptr;
  }
  return found;
}

// Puts the exchanges of gradients behind them.
absl::Status AddExchanges(Graph& graph, const std::vector<Value>& states,
                          const std::vector<const ExchangeSpec*>& exchanges, std::vector<Value>& gradients) {
  for (size_t i = 0; i < states.size(); ++i) {
    if (!exchanges[i]) continue;
    Builder b(graph, nullptr, gradients[i].node->source());
    gradients[i] = b.Op("exchange", {gradients[i]},
                        {{"by", exchanges[i]->by}, {"state", states[i].name()}, {"wire", exchanges[i]->wire}});
    RETURN_IF_ERROR(b.status());
    graph.SetName(gradients[i], "grad/" + states[i].name());
  }
  return absl::OkStatus();
}

// Puts the exchanges of weights behind the updates.
absl::Status AddExchangesOfWeights(Graph& graph, const std::vector<Value>& states,
                                   const std::vector<const ExchangeSpec*>& exchanges) {
  for (size_t i = 0; i < states.size(); ++i) {
    if (!exchanges[i] || !exchanges[i]->of_weights) continue;
    const std::string& name = states[i].name();
    const Result* const result = graph.FindResult(name, /*is_state=*/true);
    if (!result) continue;
    Builder b(graph, nullptr, result->value.node->source());
    const Value next = b.Op("exchange_weights", {result->value}, {{"by", exchanges[i]->by}, {"state", name}});
    RETURN_IF_ERROR(b.status());
    graph.SetName(next, name + ".next");
    graph.set_result_value(static_cast<size_t>(result - graph.results().data()), next);
  }
  return absl::OkStatus();
}

absl::Status LowerModel(Graph& graph, DType precision) {
  if (precision == DType::kF32) return absl::OkStatus();
  if (precision == DType::kBF16 || precision == DType::kF16) return LowerPrecision(graph, precision);
  return InvalidArgument() << "precision is " << precision << ", expected f32, bf16 or f16";
}

// The states that the loss depends on, and the gradients of the loss with respect to them.
struct Trained {
  std::vector<Value> states, gradients;
};

absl::StatusOr<Trained> AddGradientsOf(Graph& graph, Value loss, const std::vector<TrainedCandidate>& candidates,
                                       const std::optional<LossQuotient>& quotient, Value factor) {
  std::vector<Value> wrt;
  for (const TrainedCandidate& candidate : candidates) wrt.push_back(candidate.state);
  ASSIGN_OR_RETURN(const std::vector<Value> gradients,
                   AddGradients(graph, quotient ? quotient->sum : loss, wrt, factor));
  if (!loss.node->is_input()) graph.SetName(loss, "loss");
  Trained trained;
  for (size_t i = 0; i < candidates.size(); ++i) {
    if (!gradients[i] && candidates[i].is_named)
      return InvalidArgument() << "the loss does not depend on state %" << wrt[i].name();
    if (!gradients[i]) continue;
    trained.states.push_back(wrt[i]);
    trained.gradients.push_back(gradients[i]);
  }
  if (trained.states.empty())
    return InvalidArgument() << "the loss depends on no trainable state of graph @" << graph.name();
  return trained;
}

absl::Status ShowGradients(Graph& graph, const Trained& trained) {
  for (size_t i = 0; i < trained.states.size(); ++i)
    RETURN_IF_ERROR(graph.AddResult("grad/" + trained.states[i].name(), trained.gradients[i]));
  return absl::OkStatus();
}

// Gives gradients names by which users recognise them when they are communicated.
void NameGradients(Graph& graph, const Trained& trained, std::string_view suffix = "") {
  for (size_t i = 0; i < trained.states.size(); ++i) {
    if (trained.gradients[i].node->is_input()) continue;
    graph.SetName(trained.gradients[i], "grad/" + trained.states[i].name() + std::string(suffix));
  }
}

}  // namespace

absl::Status MakeTrainStep(Graph& graph, const TrainStepSpec& spec) {
  if (!spec.updates && (spec.average || !spec.groups.empty()))
    return InvalidArgument() << (spec.average ? "average" : "groups")
                             << " needs states that an optimizer updates, and there is no optimizer";
  const bool exchanges_weights = std::any_of(spec.exchanges.begin(), spec.exchanges.end(),
                                             [](const ExchangeSpec& exchange) { return exchange.of_weights; });
  if (exchanges_weights && !spec.updates) return InvalidArgument() << "exchanges of weights need an optimizer";
  RETURN_IF_ERROR(CheckDropouts(graph));
  // These run before gradients are added, which would use the nodes that they replace.
  RETURN_IF_ERROR(RecognizeAttention().run(graph).status());
  RETURN_IF_ERROR(SeparateRows().run(graph).status());
  Value rows;
  if (spec.uneven) {
    ASSIGN_OR_RETURN(rows, FindOrAddRows(graph));
  }
  RETURN_IF_ERROR(LowerModel(graph, spec.precision));
  ASSIGN_OR_RETURN(const Value loss, AddLosses(graph, spec.losses, rows));
  ASSIGN_OR_RETURN(const std::vector<TrainedCandidate> candidates, Candidates(graph, spec));
  std::optional<LossScaling> scaling;
  Value factor;
  if (spec.precision == DType::kF16) {
    ASSIGN_OR_RETURN(scaling, LossScaling::Add(graph));
    ASSIGN_OR_RETURN(factor, scaling->FactorAs(loss.dtype()));
  }
  std::vector<Value> states;
  for (const TrainedCandidate& candidate : candidates) states.push_back(candidate.state);
  // In f16 the gradients of a sum, instead of a mean, would overflow.
  const auto quotient = scaling ? std::nullopt : LossQuotientOf(loss, states);
  ASSIGN_OR_RETURN(Trained trained, AddGradientsOf(graph, loss, candidates, quotient, factor));
  if (spec.precision != DType::kF32) RETURN_IF_ERROR(KeepSumsWide(graph, trained.gradients));
  if (quotient) {
    NameGradients(graph, trained, "/sum");
    RETURN_IF_ERROR(DivideByCount(graph, quotient->count, trained.gradients));
  }
  NameGradients(graph, trained, scaling ? "/scaled" : "");
  for (size_t i = graph.results().size(); i-- > 0;) {
    if (!graph.results()[i].is_state && !spec.keep_results) graph.RemoveResult(i);
  }
  const Result* const kept = graph.FindResult("loss");
  const bool is_own_result = kept != nullptr && kept->value == loss;
  if (!is_own_result) RETURN_IF_ERROR(graph.AddResult("loss", loss));
  ASSIGN_OR_RETURN(const std::vector<const ExchangeSpec*> exchanges, ExchangesOf(trained.states, spec.exchanges));
  if (scaling) {
    RETURN_IF_ERROR(scaling->Unscale(trained.gradients, {exchanges.begin(), exchanges.end()}));
    NameGradients(graph, trained);
  }
  RETURN_IF_ERROR(AddExchanges(graph, trained.states, exchanges, trained.gradients));
  for (size_t i = 0; scaling && i < exchanges.size(); ++i) {
    if (exchanges[i]) RETURN_IF_ERROR(scaling->Require(trained.gradients[i]));
  }
  ASSIGN_OR_RETURN(trained.gradients, ClipGradients(graph, std::move(trained.gradients), spec.clipping));
  RETURN_IF_ERROR(spec.updates ? AddOptimizers(graph, trained.states, trained.gradients, spec)
                               : ShowGradients(graph, trained));
  if (scaling) RETURN_IF_ERROR(scaling->Finish());
  if (spec.average) RETURN_IF_ERROR(AddAverages(graph, trained.states));  // even if the step changes no weights
  if (rows) RETURN_IF_ERROR(FinishRows(graph, rows));
  RETURN_IF_ERROR(AddExchangesOfWeights(graph, trained.states, exchanges));
  return AccumulateGradients(graph, spec.accumulate);
}

std::vector<std::string> StatesTrainedBy(const Graph& graph) {
  std::vector<std::string> names;
  for (const Node& node : graph.nodes()) {
    if (node.op().has_trait(kOptimizer) && node.operand(0).node->is_input()) names.push_back(node.operand(0).name());
  }
  return names;
}

void DropConstants(const Graph& graph, std::vector<std::string>& frozen, const std::vector<std::string>& constants) {
  std::erase_if(frozen, [&](const std::string& pattern) {
    return !MatchesAState(graph, pattern) && MatchesOneOf(constants, pattern);
  });
}

absl::StatusOr<std::map<std::string, Tensor>> ConstantsToStates(Graph& graph, const std::vector<std::string>& patterns,
                                                                const std::vector<std::string>& constants) {
  std::map<std::string, Tensor> values;
  for (const std::string& pattern : patterns) {
    if (MatchesAState(graph, pattern) || MatchesOneOf(constants, pattern)) continue;
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
    if (!node.is_constant() || !MatchesAny(of_constants, node.result_name())) continue;
    if (std::find(constants.begin(), constants.end(), node.result_name()) != constants.end()) nodes.push_back(&node);
  }
  for (Node* node : nodes) {
    const std::string name = node->result_name();
    graph.SetName(node->result(), name + ".constant");  // the state takes over the name
    ASSIGN_OR_RETURN(const Value state, graph.AddInput(name, node->type(), /*is_state=*/true));
    values.emplace(name, node->attr<Tensor>("value"));
    graph.ReplaceUses(node->result(), state);
    graph.Erase(node);
  }
  return values;
}

absl::Status MakeTrainStepOfModel(Graph& graph, std::map<std::string, Tensor>& values,
                                  std::vector<std::string>& constants, TrainStepSpec spec,
                                  const TrainingModeOptions& mode, int64_t seed) {
  RETURN_IF_ERROR(RunPasses({TrainingMode(mode)}, graph));
  ASSIGN_OR_RETURN(const auto turned, ConstantsToStates(graph, spec.trained, constants));
  for (const auto& [name, value] : turned) {
    values.insert_or_assign(name, value);
    std::erase(constants, name);
  }
  DropConstants(graph, spec.frozen, constants);
  RETURN_IF_ERROR(MakeTrainStep(graph, spec));
  for (const std::string& name : StatesTrainedBy(graph)) {
    const auto value = values.find(name);
    if (spec.average && value != values.end()) values.insert_or_assign(AverageOf(name), value->second);
  }
  if (spec.precision == DType::kF16)
    values.insert_or_assign(std::string(kLossScale), Tensor::Scalar(DType::kF32, kInitialLossScale));
  if (graph.FindInput(kRandomSeed) != nullptr)
    values.insert_or_assign(std::string(kRandomSeed), Tensor::Of<int64_t>({}, {seed}));
  return Verify(graph);
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
