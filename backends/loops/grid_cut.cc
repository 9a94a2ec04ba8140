// Cuts a loop nest into blocks of threads for a GPU.

#include <algorithm>
#include <bit>

#include "backends/loops/grid_plan.h"

namespace lockstep {
namespace {

int64_t PowerOfTwoFrom(int64_t x) {
  return static_cast<int64_t>(std::bit_ceil(static_cast<uint64_t>(std::max<int64_t>(x, 1))));
}

// Returns the number of elements that fit in one access of the widest dtype along the last dimension, reduced if half
// of the blocks would have nothing to do.
int64_t LanesOf(const LoopNest& nest, const GridSizes& sizes) {
  uint64_t widest = 1;
  for (const Element& element : nest.elements) {
    const bool moves = element.kind == Element::Kind::kLoad && element.at.strides.back() != 0;
    if (moves) widest = std::max<uint64_t>(widest, SizeOf(element.dtype));
  }
  for (const Output& output : nest.outputs) widest = std::max<uint64_t>(widest, SizeOf(output.dtype));
  int64_t lanes = std::min<int64_t>(sizes.vector_bytes / static_cast<int64_t>(widest), 8);
  const int64_t enough = sizes.blocks * sizes.threads / 2;
  while (lanes > 1 && (nest.extents.back() % lanes != 0 || nest.num_points() / lanes < enough)) lanes /= 2;
  return std::max<int64_t>(lanes, 1);
}

// One warp per sum if this gives enough threads and no thread has much work alone; otherwise more threads, up to a
// block.
int64_t SplitsOf(const GridPlan& plan, const GridSizes& sizes) {
  const int64_t kept = std::max<int64_t>(plan.kept_vectors(), 1), reduced = plan.reduced_vectors();
  const int64_t most = std::min(sizes.threads, PowerOfTwoFrom(reduced / sizes.vectors));
  // If columns are kept, a warp first covers adjacent columns; the other warps of the block split the sums.
  const int64_t least =
      plan.vector_reduced() ? GridPlan::kWarp : sizes.threads / std::min(GridPlan::kWarp, PowerOfTwoFrom(kept));
  int64_t splits = std::min(least, most);
  if (!plan.vector_reduced()) return splits;
  constexpr int64_t kAlone = 32;  // vectors
  const int64_t enough = sizes.blocks * sizes.threads;
  while (splits < most && (kept * splits < enough || reduced / splits > kAlone)) splits *= 2;
  return splits;
}

void CutIntoChunks(GridPlan& plan, const GridSizes& sizes) {
  const int64_t blocks = plan.kept_blocks(), reduced = plan.reduced_vectors();
  plan.chunk_length = reduced;
  if (plan.num_phases > 1 || blocks == 0 || plan.reductions.empty()) return;
  const int64_t wanted = std::min(sizes.blocks / blocks, reduced / (plan.splits * sizes.vectors));
  if (wanted < 2) return;
  plan.chunk_length = (reduced + wanted - 1) / wanted;
  plan.num_chunks = (reduced + plan.chunk_length - 1) / plan.chunk_length;
}

// Returns true if the loop of `phase` reads operand `i`.
bool Reads(const LoopNest& nest, int phase, int i) {
  const std::vector<bool> needed = nest.NeededIn(phase);
  for (size_t e = 0; e < nest.elements.size(); ++e) {
    if (needed[e] && nest.elements[e].kind == Element::Kind::kLoad && nest.elements[e].index == i) return true;
  }
  return false;
}

// A value that one thread of a group writes after the reductions must not overwrite memory that other threads still
// read: after their last barrier, threads run the remaining phases independently.
void ForbidRaces(GridPlan& plan) {
  int met = -1;  // the last phase that ends with a barrier
  for (const Reduction& reduction : plan.reductions) met = std::max(met, reduction.phase);
  for (const Output& output : plan.outputs) {
    if (!output.after_reduction || plan.splits == 1) continue;
    std::erase_if(plan.in_place[static_cast<size_t>(output.result)], [&](int operand) {
      bool reads = false;
      for (int phase = met + 1; phase < plan.num_phases; ++phase) reads = reads || Reads(plan, phase, operand);
      return reads;
    });
  }
}

}  // namespace

int64_t GridPlan::finish_blocks() const { return (num_kept() * finish_splits() + kFinishThreads - 1) / kFinishThreads; }

absl::StatusOr<GridPlan> PlanGrid(const Graph& body, const GridSizes& sizes) {
  ASSIGN_OR_RETURN(LoopNest nest, MakeLoopNest(body));
  GridPlan plan(std::move(nest));
  plan.lanes = LanesOf(plan, sizes);
  plan.threads = sizes.threads;
  plan.sums_in_pairs = sizes.sums_in_pairs;
  if (!plan.reductions.empty()) plan.splits = SplitsOf(plan, sizes);
  CutIntoChunks(plan, sizes);
  plan.in_place = OverwritableOperands(plan, body);
  ForbidRaces(plan);
  return plan;
}

}  // namespace lockstep
