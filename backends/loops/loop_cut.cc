// Cuts a loop nest into units of work for a CPU.

#include <algorithm>

#include "backends/loops/loop_plan.h"

namespace lockstep {
namespace {

// Cuts reduced dimensions if the kept ones give too few units, or if long sums would lose accuracy.
void CutReduction(LoopPlan& plan, int64_t units, const LoopSizes& sizes) {
  const int64_t total = plan.num_points();
  if (plan.num_phases > 1 || units == 0 || units >= 16) return;
  const int64_t wanted = std::min(sizes.units / units, total / units / sizes.chunk);
  if (wanted < 2) return;
  // The outermost dimension that is long enough, else the longest.
  int64_t dim = -1;
  for (int64_t k = 0; k < static_cast<int64_t>(plan.extents.size()); ++k) {
    const auto extent = [&](int64_t d) { return plan.extents[static_cast<size_t>(d)]; };
    if (plan.reduced[static_cast<size_t>(k)] && (dim < 0 || (extent(dim) < wanted && extent(k) > extent(dim)))) dim = k;
  }
  const int64_t extent = plan.extents[static_cast<size_t>(dim)];
  int64_t length = (extent + wanted - 1) / wanted;
  if (dim == plan.vector_dim()) length = (length + plan.lanes - 1) / plan.lanes * plan.lanes;
  if (length >= extent) return;
  plan.chunk_dim = dim;
  plan.chunk_length = length;
  plan.num_chunks = (extent + length - 1) / length;
}

void Cut(LoopPlan& plan, const LoopSizes& sizes) {
  const int64_t heavy = plan.num_heavy(), total = plan.num_points();
  const int64_t last = plan.extents.back();
  // Several vectors hide the latency of a reduction's chain of additions.
  const bool several = plan.vector_reduced() && last >= 4 * sizes.lanes;
  plan.lanes = several ? (heavy ? 2 : 4) * sizes.lanes : sizes.lanes;
  plan.block = std::max<int64_t>(std::min(last, plan.reductions.empty() ? sizes.block : sizes.column_block), 1);

  int64_t units = plan.num_blocks();
  for (size_t k = 0; k < plan.extents.size(); ++k) {
    if (!plan.reduced[k] && static_cast<int64_t>(k) != plan.vector_dim()) units *= plan.extents[k];
  }
  if (!plan.reductions.empty()) CutReduction(plan, units, sizes);

  LoopInfo& info = plan.info;
  info.extent = units * plan.num_chunks;
  const int64_t work =
      info.extent == 0 ? 1 : std::max<int64_t>(total / info.extent * (1 + 4 * heavy) * plan.num_phases, 1);
  info.grain = std::max<int64_t>(sizes.grain / work, 1);
  info.has_finish = plan.num_chunks > 1;
  if (info.has_finish) info.scratch_bytes = plan.scratch_stride() * static_cast<int64_t>(plan.reductions.size());
}

}  // namespace

absl::StatusOr<LoopPlan> PlanLoop(const Graph& body, const LoopSizes& sizes) {
  ASSIGN_OR_RETURN(LoopNest nest, MakeLoopNest(body));
  LoopPlan plan(std::move(nest));
  Cut(plan, sizes);
  plan.info.in_place = OverwritableOperands(plan, body);
  return plan;
}

}  // namespace lockstep
