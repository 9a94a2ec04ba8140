// The placements in which attention and its gradients are computed without communication: split along the batch, the
// heads or the queries, for the gradients also along the keys; and partial sums of operands in which they are linear.

#include "core/ops/attention.h"
#include "core/ops/rules.h"

namespace lockstep::ops {
namespace {

// A way to divide the work between ranks: the required placements of the operands, and the placements of the results.
struct WorkSplit {
  std::vector<Placement> operands, results;
};

const Placement kWhole = Placement::Replicated();
const Placement kShare = Placement::Partial(ReduceKind::kSum);

// Makes and chooses the ways for one op. Dimensions are those of q, [batch..., queries, size], and of k.
class WorkSplits {
 public:
  // `mask` is the position of the mask's operand.
  WorkSplits(const PlacementContext& c, size_t mask) : c_(c), mask_(mask), rank_(c.shape(0).rank()) {}

  // Splits the leading dimension `dim` of all operands and results, except a mask whose extent is 1 there.
  WorkSplit Batch(int64_t dim) const {
    WorkSplit way{std::vector<Placement>(c_.num_operands(), Placement::Split(dim)),
                  std::vector<Placement>(c_.num_results(), Placement::Split(dim))};
    if (has_mask() && c_.shape(mask_)[dim] == 1) way.operands[mask_] = kWhole;
    return way;
  }

  bool has_mask() const { return c_.num_operands() > mask_; }
  // The mask's placement: split along `dim`, unless its extent is 1 there.
  Placement Mask(int64_t dim) const { return c_.shape(mask_)[dim] > 1 ? Placement::Split(dim) : kWhole; }

  // True if operands can be moved as the way requires: the ranks can divide each split dimension evenly, and no operand
  // becomes partial that is not.
  bool IsPossible(const WorkSplit& way) const {
    for (size_t i = 0; i < way.operands.size(); ++i) {
      const Placement& placement = way.operands[i];
      if (placement.is_split() && c_.shape(i)[placement.dim()] % c_.axis_size() != 0) return false;
      if (placement.is_partial() && c_.operand(i) != placement) return false;
    }
    return true;
  }

  // Chooses the first of the possible ways in which the fewest operands move; all replicated is the last candidate.
  void Choose(PlacementContext& c, const std::vector<WorkSplit>& ways) const {
    const WorkSplit whole{std::vector<Placement>(c.num_operands(), kWhole),
                          std::vector<Placement>(c.num_results(), kWhole)};
    const WorkSplit* best = nullptr;
    size_t fewest = 0;
    const auto consider = [&](const WorkSplit& way) {
      size_t moves = 0;
      for (size_t i = 0; i < c.num_operands(); ++i)
        moves += !c.operand(i).is_replicated() && c.operand(i) != way.operands[i];
      if (best == nullptr || moves < fewest) best = &way, fewest = moves;
    };
    bool any_placed = false;
    for (size_t i = 0; i < c.num_operands(); ++i) any_placed |= !c.operand(i).is_replicated();
    for (const WorkSplit& way : ways) {
      if (any_placed && IsPossible(way)) consider(way);
    }
    consider(whole);
    for (size_t i = 0; i < c.num_operands(); ++i) c.Require(i, best->operands[i]);
    for (size_t i = 0; i < c.num_results(); ++i) c.Result(i, best->results[i]);
  }

  std::vector<WorkSplit> Batches() const {
    std::vector<WorkSplit> ways;
    for (int64_t dim = 0; dim < rank_ - 2; ++dim) ways.push_back(Batch(dim));
    return ways;
  }

  // A way from the placements of all operands except the mask, of the mask, and of the results.
  WorkSplit Of(std::vector<Placement> operands, Placement mask, std::vector<Placement> results) const {
    if (has_mask()) operands.push_back(mask);
    return {std::move(operands), std::move(results)};
  }
  Placement MaskAlong(int64_t dim) const { return has_mask() ? Mask(dim) : kWhole; }

  Placement queries() const { return Placement::Split(rank_ - 2); }
  Placement keys() const { return Placement::Split(rank_ - 2); }
  Placement last() const { return Placement::Split(rank_ - 1); }

 private:
  const PlacementContext& c_;
  const size_t mask_;
  const int64_t rank_;
};

}  // namespace

void PlaceAttention(PlacementContext& c) {
  if (PlaceLocal(c)) return;
  const WorkSplits of(c, kForwardOperands.mask);
  std::vector<WorkSplit> ways = of.Batches();
  if (!c.attr<bool>("causal")) {
    const Placement split = of.queries();
    ways.push_back(of.Of({split, kWhole, kWhole}, of.MaskAlong(split.dim()), {split, split}));
  }
  of.Choose(c, ways);
}

void PlaceAttentionGrad(PlacementContext& c) {
  if (PlaceLocal(c)) return;
  const WorkSplits of(c, kGradOperands.mask);
  std::vector<WorkSplit> ways = of.Batches();
  const Placement queries = of.queries(), keys = of.keys(), last = of.last();
  // Operands are in the order q, k, v, log_sum_exp, dy, delta.
  if (!c.attr<bool>("causal")) {
    ways.push_back(of.Of({queries, kWhole, kWhole, queries, queries, queries}, of.MaskAlong(queries.dim()),
                         {queries, kShare, kShare}));
    ways.push_back(of.Of({kWhole, keys, keys, kWhole, kWhole, kWhole}, last, {kShare, keys, keys}));
  }
  ways.push_back(of.Of({kWhole, kWhole, last, kWhole, last, kShare}, kWhole, {kShare, kShare, last}));
  ways.push_back(of.Of({kWhole, kWhole, kWhole, kWhole, kShare, kShare}, kWhole, {kShare, kShare, kShare}));
  of.Choose(c, ways);
}

void PlaceAttentionMaskGrad(PlacementContext& c) {
  if (PlaceLocal(c)) return;
  const WorkSplits of(c, kGradOperands.mask);
  std::vector<WorkSplit> ways = of.Batches();
  // If the dimension that is split has extent 1 in the mask, the mask's gradient is a partial sum.
  const auto result = [&](int64_t dim) { return of.Mask(dim).is_split() ? of.Mask(dim) : kShare; };
  for (WorkSplit& way : ways) way.results = {result(way.operands[0].dim())};
  const Placement queries = of.queries(), keys = of.keys(), last = of.last();
  if (!c.attr<bool>("causal")) {
    ways.push_back(
        of.Of({queries, kWhole, kWhole, queries, queries, queries}, of.Mask(queries.dim()), {result(queries.dim())}));
    ways.push_back(of.Of({kWhole, keys, keys, kWhole, kWhole, kWhole}, last, {last}));
  }
  ways.push_back(of.Of({kWhole, kWhole, last, kWhole, last, kShare}, kWhole, {kShare}));
  ways.push_back(of.Of({kWhole, kWhole, kWhole, kWhole, kShare, kShare}, kWhole, {kShare}));
  ways.push_back(of.Of({kWhole, kWhole, kShare, kWhole, kWhole, kShare}, kWhole, {kShare}));
  of.Choose(c, ways);
}

}  // namespace lockstep::ops
