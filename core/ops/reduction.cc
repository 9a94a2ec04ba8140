// Reductions over dimensions of one tensor, which are removed. Floats accumulate in double, integers in 64 bits.

#include <algorithm>

#include "core/builder.h"
#include "core/ops/combine.h"
#include "core/ops/op_list.h"
#include "core/ops/rules.h"

namespace lockstep {
namespace {

using Ints = std::vector<int64_t>;

absl::Status EvalReduce(EvalContext& c, ReduceKind kind) {
  const Tensor& x = c.operand(0);
  const Ints& dims = c.attr<Ints>("dims");
  // The strides of the result along the dimensions of x: 0 along the reduced ones.
  const Ints kept_strides = c.result().shape().Strides();
  Ints strides;
  for (int64_t dim = 0, kept = 0; dim < x.shape().rank(); ++dim) {
    const bool reduced = std::find(dims.begin(), dims.end(), dim) != dims.end();
    strides.push_back(reduced ? 0 : kept_strides[static_cast<size_t>(kept++)]);
  }
  DispatchDType(x.dtype(), [&](auto tag) {
    using T = typename decltype(tag)::type;
    const auto from = x.data<T>();
    const auto out = c.result().mutable_data<T>();
    std::vector<Accumulator<T>> sums(out.size(), static_cast<Accumulator<T>>(ops::Neutral<T>(kind)));
    size_t at = 0;
    ops::ForEachIndex(x.shape(), [&](const Ints& index) {
      int64_t to = 0;
      for (size_t i = 0; i < index.size(); ++i) to += index[i] * strides[i];
      Accumulator<T>& sum = sums[static_cast<size_t>(to)];
      sum = ops::Combine(kind, sum, static_cast<Accumulator<T>>(from[at++]));
    });
    for (size_t i = 0; i < out.size(); ++i) out[i] = ConvertElement<T>(sums[i]);
  });
  return absl::OkStatus();
}

// Converts dimension d of x to a dimension of the result, -1 if it is reduced; and back.
int64_t AfterReduction(const Ints& dims, int64_t d) {
  int64_t removed = 0;
  for (int64_t dim : dims) {
    if (dim == d) return -1;
    removed += dim < d;
  }
  return d - removed;
}
int64_t BeforeReduction(const Ints& dims, int64_t d) {
  for (int64_t dim : dims) d += dim <= d;  // dims increase
  return d;
}

void PlaceReduce(PlacementContext& c, ReduceKind kind) {
  const Ints& dims = c.attr<Ints>("dims");
  const Placement& x = c.operand(0);
  if (x.is_split() && AfterReduction(dims, x.dim()) < 0) {
    c.Result(Placement::Partial(kind));  // each rank reduces its slice
  } else if (x.is_partial(kind) || (kind == ReduceKind::kSum && ops::IsLinearPartial(x, c.dtype(0)))) {
    c.Result(x);
  } else if (x.is_partial()) {
    c.Require(0, Placement::Replicated());
  } else {
    ops::PlaceDataMovement(
        c, [&](int64_t d) { return AfterReduction(dims, d); }, [&](int64_t d) { return BeforeReduction(dims, d); });
  }
}

// The common part of the four reductions. Each adds its gradient.
OpDef Reduction(const char* name, const char* doc, ReduceKind kind) {
  return OpDef(name)
      .Doc(doc)
      .Operand("x")
      .Attr<Ints>("dims", "the dimensions to reduce over")
      .Reduces(kind)
      .Constraint("C1", "dims are dimensions of x, strictly increasing")
      .Constraint("C2", "x is not bool")
      .Infer([](InferContext& c) -> absl::Status {
        const Ints& dims = c.attr<Ints>("dims");
        RETURN_IF_ERROR(ops::CheckIncreasingDims(c, "C1", dims, c.shape(0)));
        RETURN_IF_ERROR(ops::CheckArithmetic(c, "C2"));
        return c.SetResult(c.dtype(0), c.shape(0).Without(dims));
      })
      .Eval([kind](EvalContext& c) { return EvalReduce(c, kind); })
      .Place([kind](PlacementContext& c) { PlaceReduce(c, kind); });
}

// The gradient of a maximum or minimum is shared equally between the elements that are equal to it.
void ExtremumVjp(VjpContext& c) {
  Builder& b = c.b();
  const Ints& dims = c.attr<Ints>("dims");
  const Value x = c.operand(0);
  const Value attained = b.Compare(x, b.BroadcastOver(c.result(), x.shape(), dims), "eq");
  const Value mask = b.Convert(attained, x.dtype());
  const Value share = b.Div(c.grad(), b.ReduceSum(mask, dims));
  c.Contribute(0, b.Mul(mask, b.BroadcastOver(share, x.shape(), dims)));
}

// The gradient of a product with respect to one factor is the product of the others. For a nonzero factor that is
// product / factor. For a zero it is the product of all nonzero factors if there is no other zero, else zero.
void ProductVjp(VjpContext& c) {
  Builder& b = c.b();
  const Ints& dims = c.attr<Ints>("dims");
  const Value x = c.operand(0), zero = b.SplatLike(0.0, x), one = b.SplatLike(1.0, x);
  const Value is_zero = b.Compare(x, zero, "eq");
  const Value nonzero = b.Select(is_zero, one, x);
  const Value zeros = b.ReduceSum(b.Convert(is_zero, x.dtype()), dims);
  const Value product = b.Op("reduce_prod", {nonzero}, {{"dims", dims}});
  const Value if_only_zero =
      b.Select(b.Compare(zeros, b.SplatLike(1.0, zeros), "eq"), product, b.SplatLike(0.0, product));
  const Value others = b.Select(is_zero, b.BroadcastOver(if_only_zero, x.shape(), dims),
                                b.Div(b.BroadcastOver(c.result(), x.shape(), dims), nonzero));
  c.Contribute(0, b.Mul(b.BroadcastOver(c.grad(), x.shape(), dims), others));
}

}  // namespace

//===-- reduce_sum ------------------------------------------------------------------------------------------------===//
const OpDef& ReduceSumOp() {
  static const OpDef def =
      Reduction("reduce_sum", "The sum of x over dims; 0 if there are no elements.", ReduceKind::kSum)
          .Vjp([](VjpContext& c) {
            c.Contribute(0, c.b().BroadcastOver(c.grad(), c.operand(0).shape(), c.attr<Ints>("dims")));
          });
  return def;
}

//===-- reduce_max ------------------------------------------------------------------------------------------------===//
const OpDef& ReduceMaxOp() {
  static const OpDef def =
      Reduction("reduce_max",
                "The largest element of x over dims; NaN if there is a NaN; -inf or the lowest integer if there are no "
                "elements. The gradient is shared equally between equal largest elements.",
                ReduceKind::kMax)
          .Precision(PrecisionRule::kFollows)
          .Vjp(ExtremumVjp);
  return def;
}

//===-- reduce_min ------------------------------------------------------------------------------------------------===//
const OpDef& ReduceMinOp() {
  static const OpDef def =
      Reduction("reduce_min",
                "The smallest element of x over dims; NaN if there is a NaN; inf or the highest integer if there are "
                "no elements. The gradient is shared equally between equal smallest elements.",
                ReduceKind::kMin)
          .Precision(PrecisionRule::kFollows)
          .Vjp(ExtremumVjp);
  return def;
}

//===-- reduce_prod -----------------------------------------------------------------------------------------------===//
const OpDef& ReduceProdOp() {
  static const OpDef def =
      Reduction("reduce_prod", "The product of x over dims; 1 if there are no elements.", ReduceKind::kProd)
          .Vjp(ProductVjp);
  return def;
}

}  // namespace lockstep
