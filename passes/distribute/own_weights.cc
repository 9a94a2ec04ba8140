#include "passes/distribute/own_weights.h"

#include <algorithm>
#include <string>
#include <unordered_map>
#include <utility>
#include <vector>

#include "core/builder.h"
#include "core/op_def.h"
#include "passes/distribute/exchange_body.h"
#include "passes/distribute/rank_states.h"
#include "passes/state_names.h"

namespace lockstep::passes {
namespace {

constexpr char kOwn[] = "/own";

absl::StatusOr<Value> AddOwnState(Graph& graph, const std::string& name, const TensorType& type,
                                  const std::string& axis) {
  const TensorType stacked{type.dtype, WithFront(*graph.mesh().axis_size(axis), type.shape)};
  return graph.AddInput(name + kOwn, stacked, /*is_state=*/true, {{axis, Placement::Split(0)}});
}

Value Stack(Builder& b, Value local, const std::string& axis) {
  const int64_t ranks = *b.graph().mesh().axis_size(axis);
  return b.Op("parts", {local}, {{"axis", axis}, {"shape", WithFront(ranks, local.shape()).dims()}});
}

Value OwnPart(Builder& b, Value stacked, const std::string& axis) {
  return b.Op("own_part", {stacked}, {{"axis", axis}});
}

Value AsLocal(Builder& b, Value x, const std::string& axis) { return b.Op("as_local", {x}, {{"axis", axis}}); }

Value AsReplicated(Builder& b, Value x, const std::string& axis) {
  return b.Op("as_replicated", {x}, {{"axis", axis}});
}

// Returns the exchange of the gradient of a state; null if there is none.
Node* ExchangeOfGradient(Graph& graph, const std::string& state) {
  for (Node& node : graph.nodes()) {
    if (node.Is("exchange") && node.attr<std::string>("state") == state) return &node;
  }
  return nullptr;
}

// Puts a rank's own gradient in the place of the exchanged one. Its term is that of a mean over the batches of all
// ranks, so the gradient of its own batch is that times the number of ranks.
absl::Status UseOwnGradient(Graph& graph, Node& exchange, const std::string& axis) {
  const Value gradient = exchange.operand(0);
  Builder b(graph, &exchange, exchange.source());
  Value own = gradient;
  if (gradient.placement(axis).is_partial()) {
    const Value term = OwnPart(b, Stack(b, gradient, axis), axis);
    own = AsReplicated(b, b.Scale(term, static_cast<double>(*graph.mesh().axis_size(axis))), axis);
  }
  RETURN_IF_ERROR(b.status());
  graph.ReplaceUses(exchange.result(), own);
  graph.Erase(&exchange);
  return absl::OkStatus();
}

// The values that are equal on all ranks by their placements, but are computed from what each rank has of its own, with
// the names of that.
using Owners = std::unordered_map<Value, std::string, ValueHash>;

Owners ValuesOfEachRank(const Graph& graph) {
  Owners owners;
  for (const Node& node : graph.nodes()) {
    for (size_t i = 0; i < node.num_results() && !node.op().has_trait(kCollective); ++i) {
      const Value result = const_cast<Node&>(node).result(i);
      if (!result.placement(kDataAxis).is_replicated()) continue;
      if (node.Is("as_replicated")) owners.emplace(result, result.name());
      for (Value operand : node.operands()) {
        if (const auto found = owners.find(operand); found != owners.end()) owners.emplace(result, found->second);
      }
    }
  }
  return owners;
}

// Returns true for a state that the update of exchanged weights keeps. An average is not: it begins as the weights.
bool BelongsToOwnWeights(const Graph& graph, const std::string& name) {
  return std::any_of(graph.inputs().begin(), graph.inputs().end(), [&](const Input& input) {
    if (!input.is_state || !input.name().ends_with(kOwn)) return false;
    const std::string weights = input.name().substr(0, input.name().size() - std::string_view(kOwn).size());
    return name.starts_with(weights + "/") && name != AverageOf(weights);
  });
}

absl::Status KeepOwnState(Graph& graph, size_t result, const std::string& axis) {
  const std::string name = graph.results()[result].name;
  const Value state = graph.FindInput(name)->value;
  ASSIGN_OR_RETURN(const Value stacked, AddOwnState(graph, name, state.type(), axis));
  Builder first(graph, &graph.nodes().front());
  graph.ReplaceUses(state, AsReplicated(first, OwnPart(first, stacked, axis), axis));
  RETURN_IF_ERROR(first.status());
  Builder last(graph);
  const Value next = Stack(last, AsLocal(last, graph.results()[result].value, axis), axis);
  RETURN_IF_ERROR(last.status());
  graph.RemoveResult(result);
  RETURN_IF_ERROR(graph.RemoveInput(name));
  return graph.AddStateResult(name + kOwn, next, stacked.placements());
}

}  // namespace

absl::Status LowerExchangeOfWeights(Graph& graph, Node& exchange) {
  const std::string name = exchange.attr<std::string>("state"), axis = exchange.attr<std::string>("axis");
  const Value state = graph.FindInput(name)->value;
  if (Node* const of_gradient = ExchangeOfGradient(graph, name))
    RETURN_IF_ERROR(UseOwnGradient(graph, *of_gradient, axis));
  ASSIGN_OR_RETURN(const Value stacked, AddOwnState(graph, name, state.type(), axis));
  Builder first(graph, &graph.nodes().front());
  const Value sum = first.Add(state, OwnPart(first, stacked, axis));
  const Value own = AsReplicated(first, sum, axis);
  RETURN_IF_ERROR(first.status());
  graph.ReplaceUses(state, own);
  graph.SetOperand(sum.node, 0, state);
  graph.SetName(own, name + "/of_rank");
  Builder b(graph, &exchange, exchange.source());
  const Value updated = AsLocal(b, exchange.operand(0), axis);
  RETURN_IF_ERROR(b.status());
  ASSIGN_OR_RETURN(const std::vector<Value> results, ExchangeBody(graph, exchange).Insert({updated, state}));
  const std::string next = exchange.result_name();
  graph.ReplaceUses(exchange.result(), results[0]);
  graph.Erase(&exchange);
  if (!results[0].node->is_input()) graph.SetName(results[0], next);
  return graph.AddStateResult(name + kOwn, results[1], stacked.placements());
}

absl::Status KeepOwnStates(Graph& graph) {
  for (bool changed = true; changed;) {
    changed = false;
    const Owners owners = ValuesOfEachRank(graph);
    for (size_t i = 0; i < graph.results().size() && !changed; ++i) {
      const Result& result = graph.results()[i];
      const auto owner = owners.find(result.value);
      if (owner == owners.end()) continue;
      if (!result.is_state || !BelongsToOwnWeights(graph, result.name)) {
        return InvalidArgument() << (result.is_state ? "state %" : "result ") << result.name
                                 << " would differ between ranks: it is computed from %" << owner->second
                                 << ", of which an exchange of weights lets each rank have its own";
      }
      RETURN_IF_ERROR(KeepOwnState(graph, i, std::string(kDataAxis)));
      changed = true;
    }
  }
  return absl::OkStatus();
}

}  // namespace lockstep::passes
