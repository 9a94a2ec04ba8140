// Where a program may end because of what its caller gave it: a label that is no class, an index that is none, a
// divisor of zero (kRefuses). What is updated before such a place would be lost with the call.

#pragma once

#include <set>
#include <unordered_map>

#include "core/graph.h"

namespace lockstep {

// Finds the nodes of a graph that are the first to refuse what an integer input holds. The gradient of an embedding,
// which adds up at the indices that the embedding has read from, refuses nothing new.
class FirstRefusals {
 public:
  explicit FirstRefusals(const Graph& graph);

  // Whether it is one. To be asked of all nodes in order.
  bool Contain(const Node& node);

 private:
  // By node, if results of it are integers: the inputs that these are made of.
  std::unordered_map<const Node*, std::set<const Node*>> sources_;
  std::set<const Node*> refused_;
};

}  // namespace lockstep
