// Finds the moves around attention that its kernels make themselves, because they read and write rows at any distance:
// q, k and v are often transposed slices of one value, and their gradients transposed parts of one. For the backend's
// lowering.

#pragma once

#include <cstddef>
#include <map>
#include <optional>
#include <unordered_set>
#include <utility>
#include <vector>

#include "backends/cuda/kernels/attention.h"
#include "core/graph.h"

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

// The rows of a value that is not moved. `tensor` has heads, rows and elements as its last dimensions.
AttentionRows RowsOf(const Shape& tensor);

class AttentionViews {
 public:
  explicit AttentionViews(const Graph& graph);

  // The operand or result of attention or attention_grad as its kernel finds or leaves it.
  AttentionView OfOperand(const Node& node, size_t i) const;
  AttentionView OfResult(const Node& node, size_t i) const;
  // True for a move that is part of such a view, and so not a step of its own.
  bool Contains(const Node& node) const { return moves_.count(&node) > 0; }

 private:
  using Position = std::pair<const Node*, size_t>;

  void FindResults(const Graph& graph);
  void FindOperands(const Graph& graph);

  std::unordered_set<const Node*> moves_;
  std::map<Position, AttentionView> operands_, results_;  // those whose rows kernels can read or write in this way
};

}  // namespace lockstep::cuda
