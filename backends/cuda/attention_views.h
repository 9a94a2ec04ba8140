// Finds the moves around attention that its kernels make themselves, because they read and write rows at any distance:
// q, k and v are often transposed slices of one value, and their gradients transposed parts of one. Fusions that read
// the same values, such as the one that computes `delta`, read them where attention does. For the backend's lowering.

#pragma once

#include <cstddef>
#include <map>
#include <optional>
#include <unordered_set>
#include <utility>
#include <vector>

#include "backends/cuda/kernels/attention.h"
#include "core/graph.h"
#include "core/status.h"

namespace lockstep::cuda {

// A tensor in the memory of a row-major value: element i, j, … is at offset + i * strides[0] + j * strides[1] + …
struct StridedView {
  Value base;
  int64_t offset = 0;
  Shape shape;
  std::vector<int64_t> strides;

  explicit StridedView(Value all) : base(all), shape(all.shape()), strides(shape.Strides()) {}

  void Transpose(const std::vector<int64_t>& permutation);
  void Slice(const std::vector<int64_t>& start, const std::vector<int64_t>& stride, const Shape& part);
  // Returns false if the elements in the order of `to` do not have such strides.
  bool Reshape(const Shape& to);
};

// The rows of an operand or a result of attention. The first begins at element `offset` of `base`.
struct AttentionView {
  Value base;
  int64_t offset = 0;
  AttentionRows rows;
};

// An operand of a fusion in memory: `base` has its elements in another order. As a row-major value of as many
// dimensions, it gives the operand by a transpose. Without a permutation it is the operand.
struct TransposedOperand {
  Value base;
  std::vector<int64_t> permutation;
};

// The rows of a value that is not moved. `tensor` has heads, rows and elements as its last dimensions.
AttentionRows RowsOf(const Shape& tensor);

class AttentionViews {
 public:
  explicit AttentionViews(const Graph& graph);

  // The operand or result of attention or attention_grad as its kernel finds or leaves it.
  AttentionView OfOperand(const Node& node, size_t i) const;
  AttentionView OfResult(const Node& node, size_t i) const;
  // The operand of any other node as its loop finds it.
  TransposedOperand OfLoopOperand(const Node& node, size_t i) const;
  // The permutations of all its operands; empty if the loop finds all of them as they are.
  std::vector<std::vector<int64_t>> PermutationsOf(const Node& node) const;
  // True for a move that is part of such a view, and so not a step of its own.
  bool Contains(const Node& node) const { return moves_.count(&node) > 0; }

 private:
  using Position = std::pair<const Node*, size_t>;
  struct Use {  // a place where a value is read; nowhere if `user` is null
    const Node* user = nullptr;
    size_t operand = 0;
  };
  struct Chain;  // of moves

  static std::vector<Use> UsesOf(Value value);
  static Chain ChainFrom(const Graph& graph, Value value, bool with_fusions);
  void FindOutput(const Graph& graph, const Node& attention);
  bool WritesThrough(const Node& attention, const Chain& chain);
  void FindGradients(const Graph& graph, const Node& attention_grad);
  void FindOperands(const Graph& graph);
  // Lets attention or a fusion read an operand through the view, and returns false if it cannot.
  bool AddOperand(const Position& operand, const StridedView& view);
  bool AddLoopOperand(const Position& operand, const StridedView& view);

  std::unordered_set<const Node*> moves_;
  std::map<Position, AttentionView> operands_, results_;  // those whose rows kernels can read or write in this way
  std::map<Position, TransposedOperand> loop_operands_;
};

}  // namespace lockstep::cuda
