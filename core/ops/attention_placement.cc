// Where attention and its gradients can be computed without communication: in slices of the batch or of the heads, of
// the queries, and for the gradients of the keys; and shares of what they are linear in.

#include "core/ops/attention.h"
#include "core/ops/rules.h"

namespace lockstep::ops {
namespace {

// A way to share the work: where each operand is then needed, and where the results are.
struct Way {
  std::vector<Placement> operands, results;
};

const Placement kWhole = Placement::Replicated();
const Placement kShare = Placement::Partial(ReduceKind::kSum);

// What an op has as operands and results: which dimensions of them are those of q, [batch..., queries, size], and of k.
class Ways {
 public:
  // `mask` is the position of the mask's operand.
  Ways(const PlacementContext& c, size_t mask) : c_(c), mask_(mask), rank_(c.shape(0).rank()) {}

  // Along leading dimension `dim`: each operand and each result has it, but a mask of extent 1 there.
  Way Batch(int64_t dim) const {
    Way way{std::vector<Placement>(c_.num_operands(), Placement::Split(dim)),
            std::vector<Placement>(c_.num_results(), Placement::Split(dim))};
    if (has_mask() && c_.shape(mask_)[dim] == 1) way.operands[mask_] = kWhole;
    return way;
  }

  bool has_mask() const { return c_.num_operands() > mask_; }
  // Of the mask: split along `dim`, if it has it.
  Placement Mask(int64_t dim) const { return c_.shape(mask_)[dim] > 1 ? Placement::Split(dim) : kWhole; }

  // Whether operands can be moved so: each dimension that is to be split has as many equal parts as there are ranks,
  // and nothing becomes a share that is none.
  bool IsPossible(const Way& way) const {
    for (size_t i = 0; i < way.operands.size(); ++i) {
      const Placement& placement = way.operands[i];
      if (placement.is_split() && c_.shape(i)[placement.dim()] % c_.axis_size() != 0) return false;
      if (placement.is_partial() && c_.operand(i) != placement) return false;
    }
    return true;
  }

  // The way in which the fewest operands have to move, the first of those; whole if there is none.
  void Choose(PlacementContext& c, const std::vector<Way>& ways) const {
    const Way whole{std::vector<Placement>(c.num_operands(), kWhole), std::vector<Placement>(c.num_results(), kWhole)};
    const Way* best = nullptr;
    size_t fewest = 0;
    const auto consider = [&](const Way& way) {
      size_t moves = 0;
      for (size_t i = 0; i < c.num_operands(); ++i)
        moves += !c.operand(i).is_replicated() && c.operand(i) != way.operands[i];
      if (best == nullptr || moves < fewest) best = &way, fewest = moves;
    };
    bool any_placed = false;
    for (size_t i = 0; i < c.num_operands(); ++i) any_placed |= !c.operand(i).is_replicated();
    for (const Way& way : ways) {
      if (any_placed && IsPossible(way)) consider(way);
    }
    consider(whole);
    for (size_t i = 0; i < c.num_operands(); ++i) c.Require(i, best->operands[i]);
    for (size_t i = 0; i < c.num_results(); ++i) c.Result(i, best->results[i]);
  }

  std::vector<Way> Batches() const {
    std::vector<Way> ways;
    for (int64_t dim = 0; dim < rank_ - 2; ++dim) ways.push_back(Batch(dim));
    return ways;
  }

  // A way from what it says of all operands but the mask, and of the mask.
  Way Of(std::vector<Placement> operands, Placement mask, std::vector<Placement> results) const {
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
  const Ways of(c, kForwardOperands.mask);
  std::vector<Way> ways = of.Batches();
  if (!c.attr<bool>("causal")) {
    const Placement split = of.queries();
    ways.push_back(of.Of({split, kWhole, kWhole}, of.MaskAlong(split.dim()), {split, split}));
  }
  of.Choose(c, ways);
}

void PlaceAttentionGrad(PlacementContext& c) {
  if (PlaceLocal(c)) return;
  const Ways of(c, kGradOperands.mask);
  std::vector<Way> ways = of.Batches();
  const Placement queries = of.queries(), keys = of.keys(), last = of.last();
  // In the order q, k, v, log_sum_exp, dy, delta.
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
  const Ways of(c, kGradOperands.mask);
  std::vector<Way> ways = of.Batches();
  // Where the mask is shared by what is split, each rank has a share of its gradient.
  const auto result = [&](int64_t dim) { return of.Mask(dim).is_split() ? of.Mask(dim) : kShare; };
  for (Way& way : ways) way.results = {result(way.operands[0].dim())};
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
