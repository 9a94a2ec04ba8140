// The places where a program may end because of its caller's data: a label that is not a class, an index out of range,
// an integer divisor of zero (kChecksData). If the call fails there, states must not have been updated before.

#pragma once

#include <set>
#include <unordered_map>

#include "core/graph.h"

namespace lockstep {

// Finds the nodes of a graph that are the first to refuse values of an integer input. The gradient of an embedding,
// which adds at the indices that the embedding has read, cannot refuse any other value.
class FirstRefusals {
 public:
  explicit FirstRefusals(const Graph& graph);

  // Returns true if the node is one. Must be called for all nodes in order.
  bool Contain(const Node& node);

 private:
  // By node with integer results: the inputs from which these are computed.
  std::unordered_map<const Node*, std::set<const Node*>> sources_;
  std::set<const Node*> refused_;
};

}  // namespace lockstep
