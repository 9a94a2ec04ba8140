#include "passes/distribute/lower_exchanges.h"

#include <string>
#include <vector>

#include "core/builder.h"
#include "passes/distribute/exchange_body.h"
#include "passes/distribute/own_weights.h"

namespace lockstep::passes {
namespace {

bool IsOfOneRank(const Graph& graph, const Node& exchange) {
  return graph.mesh().axis_size(exchange.attr<std::string>("axis")).value_or(1) == 1;
}

absl::StatusOr<Value> SumOf(Graph& graph, Node& exchange) {
  const std::string& axis = exchange.attr<std::string>("axis");
  const Value gradient = exchange.operand(0);
  if (IsOfOneRank(graph, exchange) || !gradient.placement(axis).is_partial()) return gradient;
  if (!exchange.attr<Region>("body").empty()) {
    ASSIGN_OR_RETURN(const std::vector<Value> sums, ExchangeBody(graph, exchange).Insert({gradient}));
    return sums[0];
  }
  Builder b(graph, &exchange, exchange.source());
  const Value sum = b.Op("all_reduce", {gradient},
                         {{"axis", axis}, {"kind", std::string("sum")}, {"wire", exchange.attr<std::string>("wire")}});
  RETURN_IF_ERROR(b.status());
  return sum;
}

void Replace(Graph& graph, Node& exchange, Value by) {
  const std::string name = exchange.result_name();
  const bool is_new = by != exchange.operand(0) && !by.node->is_input();
  graph.ReplaceUses(exchange.result(), by);
  graph.Erase(&exchange);
  if (is_new) graph.SetName(by, name);
}

std::vector<Node*> NodesOf(Graph& graph, std::string_view op) {
  std::vector<Node*> found;
  for (Node& node : graph.nodes()) {
    if (node.Is(op)) found.push_back(&node);
  }
  return found;
}

// Lowers the exchanges of weights first, which need the exchanges of their gradients.
absl::StatusOr<bool> RunLowerExchanges(Graph& graph) {
  if (!graph.is_placed()) return false;
  const std::vector<Node*> of_weights = NodesOf(graph, "exchange_weights");
  bool may_differ = false;
  for (Node* exchange : of_weights) {
    if (IsOfOneRank(graph, *exchange) || exchange->attr<Region>("body").empty()) {
      Replace(graph, *exchange, exchange->operand(0));
    } else {
      RETURN_IF_ERROR(LowerExchangeOfWeights(graph, *exchange));
      may_differ = true;
    }
  }
  if (may_differ) RETURN_IF_ERROR(KeepOwnStates(graph));
  const std::vector<Node*> of_gradients = NodesOf(graph, "exchange");
  for (Node* exchange : of_gradients) {
    ASSIGN_OR_RETURN(const Value sum, SumOf(graph, *exchange));
    Replace(graph, *exchange, sum);
  }
  return !of_weights.empty() || !of_gradients.empty();
}

}  // namespace

// Bodies may round.
Pass LowerExchanges() { return {"lower-exchanges", RunLowerExchanges, Keeps::kNothing, /*needs_mesh=*/true}; }

}  // namespace lockstep::passes
