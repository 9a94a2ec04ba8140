#include "passes/distribute/lower_exchanges.h"

#include <string>
#include <utility>
#include <vector>

#include "core/builder.h"
#include "core/op_def.h"
#include "passes/distribute/rank_states.h"

namespace lockstep::passes {
namespace {

class BodyCopy {
 public:
  BodyCopy(Graph& graph, Node& exchange)
      : graph_(graph),
        exchange_(exchange),
        body_(exchange.attr<Region>("body").graph()),
        trained_(exchange.attr<std::string>("state")),
        prefix_((trained_.empty() ? exchange.result_name() : trained_) + "/" + body_.name()) {}

  // Inserts the body before the exchange and returns its result.
  absl::StatusOr<Value> Run() {
    RETURN_IF_ERROR(CheckRanks());
    for (const Input& input : body_.inputs()) RETURN_IF_ERROR(AddInput(input));
    for (const Node& node : body_.nodes()) {
      ASSIGN_OR_RETURN(Node* const copy, graph_.InsertCopy(node, map_, &exchange_));
      if (copy->op().has_trait(kCollective)) NameWhatTravels(*copy);
    }
    Value sum;
    for (const Result& result : body_.results()) {
      const Value value = map_.at(result.value);
      if (!result.is_state) sum = value;
      else RETURN_IF_ERROR(AddStateResultWith(graph_, trained_, states_.at(result.name), value, exchange_.source()));
    }
    return sum;
  }

 private:
  absl::Status CheckRanks() const {
    const std::string& axis = exchange_.attr<std::string>("axis");
    const int64_t wanted = *graph_.mesh().axis_size(axis), found = *body_.mesh().axis_size(axis);
    if (wanted == found) return absl::OkStatus();
    return FailedPrecondition() << exchange_.Describe() << " by " << exchange_.attr<std::string>("by")
                                << " has a body for " << found << " ranks, but axis " << axis << " has " << wanted;
  }

  absl::Status AddInput(const Input& input) {
    if (input.is_data()) {
      map_[input.value] = exchange_.operand(0);
      return absl::OkStatus();
    }
    ASSIGN_OR_RETURN(map_[input.value], graph_.AddInput(prefix_ + "/" + input.name(), input.value.type(),
                                                        /*is_state=*/true, input.placements()));
    states_[input.name()] = map_[input.value];
    return absl::OkStatus();
  }

  // Gives the communicated values names that users recognise.
  void NameWhatTravels(Node& collective) {
    const Value sent = collective.operand(0);
    if (sent != exchange_.operand(0) && !sent.node->is_input()) graph_.SetName(sent, prefix_);
    graph_.SetName(collective.result(), prefix_ + "/of_ranks");
  }

  Graph& graph_;
  Node& exchange_;
  const Graph& body_;
  const std::string trained_, prefix_;
  ValueMap map_;
  std::map<std::string, Value> states_;
};

absl::StatusOr<Value> Lowered(Graph& graph, Node& exchange) {
  const std::string& axis = exchange.attr<std::string>("axis");
  const bool is_partial = exchange.operand(0).placement(axis).is_partial();
  if (!graph.mesh().has_axis(axis) || *graph.mesh().axis_size(axis) == 1 || !is_partial) return exchange.operand(0);
  if (!exchange.attr<Region>("body").empty()) return BodyCopy(graph, exchange).Run();
  Builder b(graph, &exchange, exchange.source());
  const Value sum = b.Op("all_reduce", {exchange.operand(0)},
                         {{"axis", axis}, {"kind", std::string("sum")}, {"wire", exchange.attr<std::string>("wire")}});
  RETURN_IF_ERROR(b.status());
  return sum;
}

absl::StatusOr<bool> RunLowerExchanges(Graph& graph) {
  if (!graph.is_placed()) return false;
  std::vector<Node*> exchanges;
  for (Node& node : graph.nodes()) {
    if (node.Is("exchange")) exchanges.push_back(&node);
  }
  for (Node* exchange : exchanges) {
    ASSIGN_OR_RETURN(const Value sum, Lowered(graph, *exchange));
    const std::string name = exchange->result_name();
    graph.ReplaceUses(exchange->result(), sum);
    const bool is_new = sum != exchange->operand(0) && !sum.node->is_input();
    graph.Erase(exchange);
    if (is_new) graph.SetName(sum, name);
  }
  return !exchanges.empty();
}

}  // namespace

// Bodies may round.
Pass LowerExchanges() { return {"lower-exchanges", RunLowerExchanges, Keeps::kNothing, /*needs_mesh=*/true}; }

}  // namespace lockstep::passes
