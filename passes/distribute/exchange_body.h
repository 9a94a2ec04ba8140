// Copies the body of an exchange (core/ops/exchange.cc) into the program of all ranks, for the pass lower-exchanges.

#pragma once

#include <map>
#include <string>
#include <vector>

#include "core/graph.h"
#include "core/status.h"

namespace lockstep::passes {

class ExchangeBody {
 public:
  // `exchange` is a node of `graph` that has a body.
  ExchangeBody(Graph& graph, Node& exchange);

  // Inserts the body before the exchange, with `inputs` for its inputs in order, and returns its results in order. Its
  // states become states of the graph, `<trained state>/<name of the body>/<state>`, and settings of the graph's names
  // the same settings. Returns an error if the body is for another number of ranks.
  absl::StatusOr<std::vector<Value>> Insert(const std::vector<Value>& inputs);

 private:
  absl::Status CheckRanks() const;
  absl::StatusOr<Value> AddInput(const Input& input);
  void NameWhatTravels(Node& collective);

  Graph& graph_;
  Node& exchange_;
  const Graph& body_;
  const std::string trained_, prefix_;
  std::map<std::string, Value> states_;
};

}  // namespace lockstep::passes
