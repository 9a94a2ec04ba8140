// Values of a graph that do not depend on its inputs, computed by the ops' reference meanings. One object for one run
// of a pass; the graph's nodes must not be erased while it lives.

#pragma once

#include <optional>
#include <unordered_map>
#include <vector>

#include "core/graph.h"
#include "core/tensor.h"

namespace lockstep::passes {

class KnownValues {
 public:
  // The value, or null: it depends on an input or a rank, is large, or its evaluation fails.
  const Tensor* Find(Value value);
  // The number that all its elements are, if they are one.
  std::optional<double> FindNumber(Value value);

 private:
  // The results of a node, none if they are not known.
  const std::vector<Tensor>& ResultsOf(const Node& node);
  std::unordered_map<const Node*, std::vector<Tensor>> results_;
};

}  // namespace lockstep::passes
