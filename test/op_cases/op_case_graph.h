// Graphs of one row of the table, for its tests.

#pragma once

#include <vector>

#include "core/graph.h"
#include "core/op_def.h"
#include "test/op_cases/op_case.h"

namespace lockstep {

// The graph @case(%a0: ..., %a1: ...) -> (r0: ..., ...) with one node. The graph of a collective is local, on the row's
// mesh. Returns the op's error if it refuses.
absl::StatusOr<Graph> CaseGraph(const OpCase& row);

// The graph of a collective on a mesh with more axes than its own, along which operands and results are local.
absl::StatusOr<Graph> CaseGraphOn(const OpCase& row, const Mesh& mesh);

// The placement of a collective's operands in a row: the one that the op requires, or local if the op accepts that.
Placement CollectiveOperandPlacement(const OpCase& row);

// The row with every float dtype of operands and attributes replaced by f64, and without a wire. Gradients are compared
// in this form.
OpCase InDouble(const OpCase& row);

// True if op_case_test compares this row's gradient with differences.
bool GradientIsCompared(const OpCase& row);

// graph(operands, cotangents) -> the loss and the gradients of the float operands. The loss is the sum of all float
// results, weighted by cotangents of their types. On several ranks each has its own loss, and the gradients are those
// of the sum of the losses.
struct GradientGraph {
  Graph graph;
  std::vector<size_t> operands;  // indices of those with a gradient result, in order
  std::vector<TensorType> cotangents;
};

absl::StatusOr<GradientGraph> MakeGradientGraph(const OpCase& row);

// The inputs of every rank, different on each rank.
std::vector<std::vector<Tensor>> RankInputs(const OpCase& row);

// The elementwise ops without attributes that take `operands` floats, for tests that cover all of them.
std::vector<std::string> ElementwiseOpsOfFloats(size_t operands);

// Returns max |a - b| / max(1, max |b|), in double; infinity if the types, or the positions of NaN or infinities,
// differ.
double RelativeDifference(const Tensor& a, const Tensor& b);

}  // namespace lockstep
