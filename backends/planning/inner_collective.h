// Collectives along an inner dimension. Slices must be contiguous where a communicator takes or gives them, so they are
// brought there by a copy, and away from there. For the emitters of backends.

#pragma once

#include <cstdint>

#include "backends/planning/program_builder.h"
#include "core/status.h"

namespace lockstep {

// A tensor seen from one dimension: `outer` runs of `extent * inner` bytes.
struct Runs {
  int64_t outer = 1;
  int64_t inner = 1;  // bytes of one index of the dimension

  Runs(const TensorType& type, int64_t dim) : inner(static_cast<int64_t>(SizeOf(type.dtype))) {
    for (int64_t i = 0; i < dim; ++i) outer *= type.shape[i];
    for (int64_t i = dim + 1; i < type.shape.rank(); ++i) inner *= type.shape[i];
  }
};

// Adds the collective and its copies. `c` is the backend's emit context. `swap(rows, columns, bytes)` returns a kernel
// that transposes elements [rows][columns] of `bytes` bytes each to [columns][rows].
template <typename Context, typename Swap>
absl::Status EmitCollectiveOfSlices(const Node& node, Context& c, Swap swap) {
  ProgramBuilder& builder = c.builder();
  const int64_t ranks = builder.RanksAlong(node);
  for (size_t i = 0; i < node.operands().size(); ++i) {
    const TensorType &x = node.operand(i).type(), &y = node.type(i);
    ASSIGN_OR_RETURN(int taken, absl::StatusOr<int>(c.Read(node, i)));
    if (!ProgramBuilder::TakesContiguous(node, i)) {
      const auto [slice, dim] = builder.SliceTaken(node, i);
      const Runs runs(slice, dim);
      const int slices = builder.DefineTemporary(node.result_name(i) + ".taken", x.dtype, "", x.num_bytes());
      c.Add(node, swap(runs.outer, ranks, slice.shape[dim] * runs.inner), {taken}, {slices});
      taken = slices;
    }
    if (ProgramBuilder::GivesContiguous(node, i)) {
      builder.AddCollective(node, builder.InfoOf(node, x.dtype), {taken}, {c.Write(node, i)});
      continue;
    }
    const auto [slice, dim] = builder.SliceGiven(node, i);
    const Runs runs(slice, dim);
    const int given = builder.DefineTemporary(node.result_name(i) + ".given", y.dtype, "", y.num_bytes());
    builder.AddCollective(node, builder.InfoOf(node, x.dtype), {taken}, {given});
    c.Add(node, swap(ranks, runs.outer, slice.shape[dim] * runs.inner), {given}, {c.Write(node, i)});
  }
  return absl::OkStatus();
}

}  // namespace lockstep
