// Whether rounding can be told from an error in what a node computes: random graphs keep only nodes of which it can.

#pragma once

#include <vector>

#include "core/graph.h"
#include "core/tensor.h"

namespace lockstep {

// A value and whether it is exact: small multiples of a small power of two, computed from such alone, so that every
// order of computing it gives the same bits. Among exact values there may be ties, and jumps may be met.
struct KnownTensor {
  Tensor tensor;
  bool is_exact = false;
};

// Finite, not large, and of few elements.
constexpr int64_t kMostElements = 512;
constexpr double kTooLarge = 100;
bool IsTame(const Tensor& tensor);

// Whether all elements are numbers that every float dtype holds, with room for a few sums and products of them.
bool IsCoarse(const Tensor& tensor);

// Whether `result` of the node is exact, as its operands are.
bool IsExact(const Node& node, const std::vector<const KnownTensor*>& operands, const Tensor& result);

// Whether rounding of the operands that are not exact moves the node's results by little: its op is where it is defined
// and not steep, compares nothing that is almost equal, and steps over no jump.
bool IsSteady(const Node& node, const std::vector<const KnownTensor*>& operands, const std::vector<Tensor>& results);

// Of a whole program: all that it computes of the inputs is smaller than kTooLarge, and steady.
bool IsSteadyProgram(const Graph& graph, const std::vector<Tensor>& inputs);

// Whether rounding could carry an element across an integer, or the middle between two.
bool NearJump(const Tensor& tensor);

// The smallest element, and the largest; 0 if there are none.
double SmallestOf(const Tensor& tensor);
double LargestOf(const Tensor& tensor);

}  // namespace lockstep
