// Evaluates values of a graph that do not depend on its inputs, by the ops' reference meanings. Use one object for one
// run of a pass. The graph's nodes must not be erased while it lives.

#pragma once

#include <optional>
#include <unordered_map>
#include <vector>

#include "core/graph.h"
#include "core/tensor.h"

namespace lockstep::passes {

class KnownValues {
 public:
  // Returns the elements of `value`, owned by this object. Returns null if it depends on an input or a rank, if it is
  // large, or if its evaluation fails.
  const Tensor* Find(Value value);
  // Returns the number that all elements of a float value equal; nullopt if they differ or are not known.
  std::optional<double> FindNumber(Value value);

 private:
  // Returns the results of a node; empty if they are not known.
  const std::vector<Tensor>& ResultsOf(const Node& node);
  std::unordered_map<const Node*, std::vector<Tensor>> results_;
};

}  // namespace lockstep::passes
