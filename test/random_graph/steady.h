// Tells if rounding in a node's results can be distinguished from an error. Random graphs keep only nodes for which it
// can.

#pragma once

#include <vector>

#include "core/graph.h"
#include "core/tensor.h"

namespace lockstep {

// A value, with a flag if it is exact: it consists of small multiples of a small power of two and is computed only from
// such, so that every order of computation gives the same bits. Exact values may have ties and may lie on jumps.
struct KnownTensor {
  Tensor tensor;
  bool is_exact = false;
};

// A tame tensor is finite, not large, and has few elements.
constexpr int64_t kMostElements = 512;
constexpr double kTooLarge = 100;
bool IsTame(const Tensor& tensor);

// True if all elements are numbers that every float dtype represents, also after a few sums and products.
bool IsCoarse(const Tensor& tensor);

// True if `result` of the node is exact, given its operands.
bool IsExact(const Node& node, const std::vector<const KnownTensor*>& operands, const Tensor& result);

// True if rounding errors of inexact operands change the node's results only little: the op is inside its domain and
// not steep, compares no almost equal numbers, and crosses no jump.
bool IsSteady(const Node& node, const std::vector<const KnownTensor*>& operands, const std::vector<Tensor>& results);

// The same for a whole program: every computed value is smaller than kTooLarge, and every node is steady.
bool IsSteadyProgram(const Graph& graph, const std::vector<Tensor>& inputs);

// True if rounding could move an element across an integer, or across the middle between two.
bool NearJump(const Tensor& tensor);

// The smallest and the largest element; 0 if there are none.
double SmallestOf(const Tensor& tensor);
double LargestOf(const Tensor& tensor);

}  // namespace lockstep
