#include "passes/distribute/exchange_body.h"

#include "core/op_def.h"
#include "passes/distribute/rank_states.h"

namespace lockstep::passes {

ExchangeBody::ExchangeBody(Graph& graph, Node& exchange)
    : graph_(graph),
      exchange_(exchange),
      body_(exchange.attr<Region>("body").graph()),
      trained_(exchange.attr<std::string>("state")),
      prefix_((trained_.empty() ? exchange.result_name() : trained_) + "/" + body_.name()) {}

absl::StatusOr<std::vector<Value>> ExchangeBody::Insert(const std::vector<Value>& inputs) {
  RETURN_IF_ERROR(CheckRanks());
  ValueMap map;
  size_t next = 0;
  for (const Input& input : body_.inputs()) {
    if (input.is_data()) {
      map[input.value] = inputs[next++];
    } else {
      ASSIGN_OR_RETURN(map[input.value], AddInput(input));
    }
  }
  for (const Node& node : body_.nodes()) {
    ASSIGN_OR_RETURN(Node* const copy, graph_.InsertCopy(node, map, &exchange_));
    if (copy->op().has_trait(kCollective)) NameWhatTravels(*copy);
  }
  std::vector<Value> results;
  for (const Result& result : body_.results()) {
    const Value value = map.at(result.value);
    if (!result.is_state) results.push_back(value);
    else RETURN_IF_ERROR(AddStateResultWith(graph_, trained_, states_.at(result.name), value, exchange_.source()));
  }
  return results;
}

absl::Status ExchangeBody::CheckRanks() const {
  const std::string& axis = exchange_.attr<std::string>("axis");
  const int64_t wanted = *graph_.mesh().axis_size(axis), found = *body_.mesh().axis_size(axis);
  if (wanted == found) return absl::OkStatus();
  return FailedPrecondition() << exchange_.Describe() << " by " << exchange_.attr<std::string>("by")
                              << " has a body for " << found << " ranks, but axis " << axis << " has " << wanted;
}

absl::StatusOr<Value> ExchangeBody::AddInput(const Input& input) {
  if (input.setting) {
    const Input* const found = graph_.FindInput(input.name());
    return found != nullptr ? found->value : graph_.AddSetting(input.name(), *input.setting);
  }
  ASSIGN_OR_RETURN(const Value state, graph_.AddInput(prefix_ + "/" + input.name(), input.value.type(),
                                                      /*is_state=*/true, input.placements()));
  states_[input.name()] = state;
  return state;
}

// Gives the communicated values names that users recognise.
void ExchangeBody::NameWhatTravels(Node& collective) {
  const Value operand = collective.operand(0);
  if (!operand.node->is_input() && operand != exchange_.operand(0)) graph_.SetName(operand, prefix_);
  graph_.SetName(collective.result(), prefix_ + "/of_ranks");
}

}  // namespace lockstep::passes
