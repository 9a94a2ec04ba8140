// A random graph while it grows: its inputs, its values and what these are, and how operands are chosen. What nodes
// there may be is in random_graph.cc and op_nodes.cc.

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

  // Elements of floats between the two, or multiples of 1/2 there (so that some are equal); integers with both ends.
  Tensor RandomTensor(const TensorType& type, double low, double high);
  // A data input, or sometimes a state, that is split along some axes of the mesh that is to come.
  Value AddInput(Tensor tensor);
  Value AddInput(Tensor tensor, bool is_state, PlacementMap placements);
  PlacementMap RandomPlacements(const Shape& shape, bool is_state);

  int64_t RandomExtent();
  Shape RandomShape();
  double RandomElement(DType dtype);
  // Most elements are equal, and numbers that rules look for.
  Value Constant(const TensorType& type);

  // --- Choosing operands: null if there is none ----------------------------------------------------------------------

  using Filter = std::function<bool(Value)>;
  Value Pick(const Filter& filter);
  Value PickOf(const TensorType& type);
  Value PickNumber();
  const Tensor& TensorOf(Value value) const { return known_.at(value).tensor; }
  bool Has(Value value) const { return known_.contains(value); }

  // --- Growing -------------------------------------------------------------------------------------------------------

  // Evaluates what was inserted since the last call. Nodes of which no backend and no order of computing could be
  // compared with another are erased, and those that need them. Requires that the builder holds no error.
  void KeepSteadyNodes();
  // At the end `value`, if it is still there, is the next value of the state `input`.
  void SetNext(Value input, Value value) { next_[input] = value; }
  // The node, a batch normalisation whose x is split along `data`, has the statistics of each of the axis' ranks: its
  // groups, which are so many times more until the end, are then each rank's.
  void SetOfRanks(Node* node) { of_ranks_.insert(node); }
  bool IsOfRanks(Node* node) const { return of_ranks_.contains(node); }

  // The program: each state has a next value if there is one of its type, and values that nobody uses are results.
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
