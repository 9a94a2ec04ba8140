// Graphs of one row of the table, for its tests.

#pragma once

#include "core/graph.h"
#include "core/op_def.h"
#include "test/op_cases/op_case.h"

namespace lockstep {

// graph @case(%a0: ..., %a1: ...) -> (r0: ..., ...) with the one node; that of a collective is local, on the row's
// mesh. The error is the op's.
absl::StatusOr<Graph> CaseGraph(const OpCase& row);

// That of a collective, on a mesh with more axes than its own: its operands and results differ along those.
absl::StatusOr<Graph> CaseGraphOn(const OpCase& row, const Mesh& mesh);

// Where a row of a collective has its operands: where the op takes them from, or different on all ranks if it takes
// that.
Placement CollectiveOperandPlacement(const OpCase& row);

// The row with every float dtype, of operands and attributes, replaced by f64, and without a wire: what gradients are
// compared in.
OpCase InDouble(const OpCase& row);

// Whether op_case_test compares this row's gradient with differences.
bool GradientIsCompared(const OpCase& row);

// The inputs of every rank, different on each.
std::vector<std::vector<Tensor>> RankInputs(const OpCase& row);

// The elementwise ops without attributes that take `operands` floats: for tests that cover all of them.
std::vector<std::string> ElementwiseOpsOfFloats(size_t operands);

// max |a - b| over max(1, max |b|), in double; infinite if types, or the places of NaN or infinities, differ.
double RelativeDifference(const Tensor& a, const Tensor& b);

}  // namespace lockstep
