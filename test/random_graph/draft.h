// A random graph under construction: its inputs, its values with their elements, and the choice of operands. The kinds
// of nodes are in random_graph.cc and op_nodes.cc.

#pragma once

#include <functional>
#include <map>
#include <string>
#include <unordered_map>
#include <unordered_set>
#include <vector>

#include "core/builder.h"
#include "core/graph.h"
#include "test/random_graph/random.h"
#include "test/random_graph/random_graph.h"
#include "test/random_graph/steady.h"

namespace lockstep {

class Draft {
 public:
  Draft(uint64_t seed, const RandomGraphOptions& options);

  Random& random() { return random_; }
  const RandomGraphOptions& options() const { return options_; }
  Graph& graph() { return graph_; }
  Builder& b() { return b_; }

  // --- Inputs --------------------------------------------------------------------------------------------------------

  // Floats are between `low` and `high`, or multiples of 1/2 there (so that some are equal); integers may equal either
  // bound.
  Tensor RandomTensor(const TensorType& type, double low, double high);
  // Adds a data input, or sometimes a state, split along some axes of the later mesh.
  Value AddInput(Tensor tensor);
  Value AddInput(Tensor tensor, bool is_state, PlacementMap placements);
  PlacementMap RandomPlacements(const Shape& shape, bool is_state);

  int64_t RandomExtent();
  Shape RandomShape();
  double RandomElement(DType dtype);
  // Most elements are equal, and are numbers that rewrite rules look for.
  Value Constant(const TensorType& type);

  // --- Choosing operands: null if there is none ----------------------------------------------------------------------

  using Filter = std::function<bool(Value)>;
  Value Pick(const Filter& filter);
  Value PickOf(const TensorType& type);
  Value PickNumber();
  const Tensor& TensorOf(Value value) const { return known_.at(value).tensor; }
  bool Has(Value value) const { return known_.contains(value); }

  // --- Growing -------------------------------------------------------------------------------------------------------

  // Evaluates the nodes inserted since the last call. Erases nodes whose values depend on rounding, so that backends or
  // orders of computation could not be compared, and their users. Requires that the builder has no error.
  void KeepSteadyNodes();
  // Makes `value` the next value of the state `input` in the finished program, unless it was erased.
  void SetNext(Value input, Value value) { next_[input] = value; }
  // Gives the node, a batch normalisation whose x is split along `data`, the statistics of each rank of that axis.
  // Until Finish its groups are those of all ranks, then those of each rank.
  void SetOfRanks(Node* node) { of_ranks_.insert(node); }
  bool IsOfRanks(Node* node) const { return of_ranks_.contains(node); }

  // Returns the program. Each state has a next value if there is one of its type; unused values are results.
  RandomProgram Finish();

 private:
  void SplitAlongModel(const Shape& shape, PlacementMap& placements);
  bool Keep(Node& node);  // false if it is to be erased

  Random random_;
  const RandomGraphOptions options_;
  Graph graph_;
  Builder b_;
  std::vector<Tensor> inputs_;
  std::vector<Value> values_;
  std::unordered_map<Value, KnownTensor, ValueHash> known_;
  std::unordered_map<Value, Value, ValueHash> next_;
  std::unordered_set<Node*> of_ranks_;
};

}  // namespace lockstep
