// Cuts a planned loop into units of work, and says which operands its results may overwrite.

#include <algorithm>

#include "backends/loops/loop_plan.h"
#include "core/op_def.h"

namespace lockstep {
namespace {

bool IsHeavy(const Element& element) {
  return element.kind == Element::Kind::kOp && element.node->op().has_trait(kHeavy);
}

// Reduced dimensions are cut where the kept ones give too few units, or long sums would lose accuracy.
void CutReduction(LoopPlan& plan, int64_t units, const LoopSizes& sizes) {
  int64_t total = 1;
  for (int64_t extent : plan.extents) total *= extent;
  if (plan.num_phases > 1 || units == 0 || units >= 16) return;
  const int64_t wanted = std::min(sizes.units / units, total / units / sizes.chunk);
  if (wanted < 2) return;
  // The outermost that is long enough, else the longest.
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

// A result may overwrite an operand that is read at the position that is written, of elements as large, and never
// later.
std::vector<int> OverwritableBy(const LoopPlan& plan, const Output& output, const Graph& body) {
  std::vector<int> operands;
  for (size_t i = 0; i < body.inputs().size(); ++i) {
    bool ok = body.inputs()[i].value.type().num_bytes() ==
              body.results()[static_cast<size_t>(output.result)].value.type().num_bytes();
    for (int phase = 0; phase <= plan.num_phases && ok; ++phase) {
      const std::vector<bool> needed = plan.NeededIn(phase);
      for (size_t e = 0; e < plan.elements.size(); ++e) {
        const Element& element = plan.elements[e];
        if (!needed[e] || element.kind != Element::Kind::kLoad || element.index != static_cast<int>(i)) continue;
        ok = ok && element.at == output.at && SizeOf(element.dtype) == SizeOf(output.dtype);
        ok = ok && (output.after_reduction || phase <= output.phase);
      }
    }
    if (ok) operands.push_back(static_cast<int>(i));
  }
  return operands;
}

}  // namespace

void CutLoop(LoopPlan& plan, const Graph& body, const LoopSizes& sizes) {
  const int64_t heavy = std::count_if(plan.elements.begin(), plan.elements.end(), IsHeavy);
  const int64_t last = plan.extents.back();
  // Several vectors at once hide the latency of a reduction's chain of additions.
  const bool several = plan.vector_reduced() && last >= 4 * sizes.lanes;
  plan.lanes = several ? (heavy ? 2 : 4) * sizes.lanes : sizes.lanes;
  plan.block = std::max<int64_t>(std::min(last, plan.reductions.empty() ? sizes.block : sizes.column_block), 1);

  int64_t units = plan.num_blocks(), total = 1;
  for (size_t k = 0; k < plan.extents.size(); ++k) {
    total *= plan.extents[k];
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
  info.in_place.resize(body.results().size());
  for (const Output& output : plan.outputs)
    info.in_place[static_cast<size_t>(output.result)] = OverwritableBy(plan, output, body);
}

}  // namespace lockstep
