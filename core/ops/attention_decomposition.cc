// Attention as matrix products and loops, for targets without a kernel for it. Unlike a kernel, which works in blocks,
// it stores the scores of all queries and keys at once, in f32, and two or three such tensors in the gradients.

#include <algorithm>
#include <limits>

#include "core/builder.h"
#include "core/ops/attention.h"

namespace lockstep::ops {
namespace {

using Ints = std::vector<int64_t>;

// The common part of the forward and backward decompositions, in the dtype of the softmax: f64 if q is f64, else f32.
// If q has 16 bits, the factors that are later multiplied with v, k and q are rounded to 16 bits.
struct Scores {
  Builder& b;
  int64_t rank, last;  // of q; its last dimension
  DType dtype;
  Value q, k, v;  // of `dtype`; k and v with a head for each of q
  Value scores;   // [..., queries, keys], minus infinity where a key is not seen
  Value slopes;   // the derivative of the soft cap; null without one

  Scores(DecomposeContext& c, size_t mask)
      : b(c.b()),
        rank(c.operand(0).shape().rank()),
        last(rank - 1),
        dtype(c.operand(0).dtype() == DType::kF64 ? DType::kF64 : DType::kF32),
        q(b.Convert(c.operand(0), dtype)),
        k(Repeated(b.Convert(c.operand(1), dtype))),
        v(Repeated(b.Convert(c.operand(2), dtype))) {
    scores = b.Scale(b.MatMul(q, k, false, true), c.attr<double>("scale"));
    if (const double softcap = c.attr<double>("softcap"); softcap > 0) {
      const Value tanh = b.Tanh(b.Scale(scores, 1 / softcap));
      slopes = b.Sub(b.SplatLike(1.0, tanh), b.Mul(tanh, tanh));
      scores = b.Scale(tanh, softcap);
    }
    if (c.num_operands() > mask) AddMask(c.operand(mask));
    if (c.attr<bool>("causal")) Hide(Future(c.attr<int64_t>("past")));
  }

  // Broadcasts x to `shape`. Dimensions of x have the extent of `shape` or 1.
  Value Stretched(Value x, const Shape& shape) const {
    if (!x) return x;
    Ints kept, dims;
    for (int64_t i = 0; i < shape.rank(); ++i) {
      if (x.shape()[i] != shape[i]) continue;
      kept.push_back(shape[i]);
      dims.push_back(i);
    }
    return b.Broadcast(b.Reshape(x, Shape(kept)), shape, dims);
  }

  // Repeats each head of x, which is k or v, for each head of q that uses it.
  Value Repeated(Value x) const {
    if (!x || rank == 2 || x.shape()[rank - 3] == q.shape()[rank - 3]) return x;
    Ints apart = x.shape().dims(), dims, together = apart;
    apart.insert(apart.begin() + rank - 2, q.shape()[rank - 3] / x.shape()[rank - 3]);
    for (int64_t i = 0; i <= rank; ++i) {
      if (i != rank - 2) dims.push_back(i);
    }
    together[static_cast<size_t>(rank - 3)] = q.shape()[rank - 3];
    // The reshape of an empty tensor cannot be split between ranks.
    if (x.type().num_elements() == 0) return b.Splat(0.0, {x.dtype(), Shape(together)});
    return b.Reshape(b.Broadcast(x, Shape(apart), dims), Shape(together));
  }
  // The inverse of Repeated for a gradient: sums it over the heads of q that use the same head of x.
  Value Shared(Value gradient, const Shape& x) const {
    if (!gradient || gradient.shape() == x) return gradient;
    if (x.num_elements() == 0) return b.Splat(0.0, {gradient.dtype(), x});
    Ints apart = x.dims();
    apart.insert(apart.begin() + rank - 2, gradient.shape()[rank - 3] / x[rank - 3]);
    return b.ReduceSum(b.Reshape(gradient, Shape(apart)), {rank - 2});
  }

  Value OverKeys(Value of_queries) const {
    return scores ? b.BroadcastOver(of_queries, scores.shape(), {last}) : Value();
  }
  Value IsMinusInfinity(Value x) const { return b.Compare(x, b.SplatLike(-kInfinity, x), "eq"); }

 private:
  void Hide(Value hidden) { scores = b.Select(hidden, b.SplatLike(-kInfinity, scores), scores); }

  // A hidden key does not contribute, even if its score is NaN.
  void AddMask(Value mask) {
    if (!scores || scores.type().num_elements() == 0) return;
    if (mask.dtype() == DType::kBool) return Hide(b.Op("not", {Stretched(mask, scores.shape())}));
    const Value added = Stretched(b.Convert(mask, dtype), scores.shape());
    scores = b.Add(scores, added);
    Hide(IsMinusInfinity(added));
  }

  // True where a key comes after those that a causal query sees.
  Value Future(int64_t past) const {
    if (!scores) return {};
    const TensorType positions{DType::kI64, {scores.shape()[last - 1], scores.shape()[last]}};
    const Value query = b.Iota(positions, 0), key = b.Iota(positions, 1);
    const Value future = b.Compare(key, b.AddScalar(query, static_cast<double>(past)), "gt");
    return b.Broadcast(future, scores.shape(), {last - 1, last});
  }
};

// P and dS of attention_grad.
struct ScoreGradients {
  Scores s;
  Value p, ds;

  explicit ScoreGradients(DecomposeContext& c) : s(c, kGradOperands.mask) {
    Builder& b = s.b;
    const Value log_sum_exp = c.operand(kGradOperands.log_sum_exp), delta = c.operand(kGradOperands.delta);
    const Value unseen = b.Op("or", {s.IsMinusInfinity(s.scores), s.OverKeys(s.IsMinusInfinity(log_sum_exp))});
    const Value none = b.SplatLike(0.0, s.scores);
    p = b.Select(unseen, none, b.Exp(b.Sub(s.scores, s.OverKeys(log_sum_exp))));
    const Value dp = b.MatMul(b.Convert(c.operand(kGradOperands.dy), s.dtype), s.v, false, true);
    ds = b.Select(unseen, none, b.Mul(p, b.Sub(dp, s.OverKeys(delta))));
  }
};

}  // namespace

std::vector<Value> DecomposeAttention(DecomposeContext& c) {
  Builder& b = c.b();
  const Scores s(c, kForwardOperands.mask);
  const Value largest = b.ReduceMax(s.scores, {s.last});
  // If no key is seen, the largest score is minus infinity; subtracting 0 keeps the scores at minus infinity.
  const Value max = b.Select(s.IsMinusInfinity(largest), b.SplatLike(0.0, largest), largest);
  const Value e = b.Exp(b.Sub(s.scores, s.OverKeys(max)));
  const Value sum = b.ReduceSum(e, {s.last});
  const Value none = b.Compare(sum, b.SplatLike(0.0, sum), "eq");
  const Value p = b.Div(e, s.OverKeys(b.Select(none, b.SplatLike(1.0, sum), sum)));
  const DType dtype = c.operand(0).dtype();
  return {b.MatMul(b.Convert(p, dtype), s.Repeated(c.operand(2))), b.Add(max, b.Log(sum))};
}

std::vector<Value> DecomposeAttentionGrad(DecomposeContext& c) {
  Builder& b = c.b();
  const ScoreGradients g(c);
  Value dproduct = b.Scale(g.ds, c.attr<double>("scale"));
  if (g.s.slopes) dproduct = b.Mul(dproduct, g.s.slopes);
  // The products have the operands' dtype: their results may be partial sums, to which no conversion can be applied.
  const DType dtype = c.operand(0).dtype();
  dproduct = b.Convert(dproduct, dtype);
  return {b.MatMul(dproduct, g.s.Repeated(c.operand(1))),
          g.s.Shared(b.MatMul(dproduct, c.operand(0), true), c.operand(1).shape()),
          g.s.Shared(b.MatMul(b.Convert(g.p, dtype), c.operand(kGradOperands.dy), true), c.operand(2).shape())};
}

std::vector<Value> DecomposeAttentionMaskGrad(DecomposeContext& c) {
  Builder& b = c.b();
  const ScoreGradients g(c);
  const Value mask = c.operand(kGradOperands.mask);
  if (!g.ds) return {Value()};
  Ints shared, kept;
  for (int64_t i = 0; i < g.s.rank; ++i) (mask.shape()[i] == g.ds.shape()[i] ? kept : shared).push_back(i);
  const Value sum = b.ReduceSum(b.Convert(g.ds, mask.dtype()), shared);
  if (!sum || sum.type().num_elements() > 0) return {b.Reshape(sum, mask.shape())};
  // The reshape of an empty tensor cannot be split between ranks, and a broadcast does not accept partial sums.
  const bool is_partial = std::any_of(sum.placements().begin(), sum.placements().end(),
                                      [](const auto& axis) { return axis.second.is_partial(); });
  return {is_partial ? b.Reshape(sum, mask.shape()) : b.Broadcast(sum, mask.shape(), kept)};
}

}  // namespace lockstep::ops
