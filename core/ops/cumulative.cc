// Reductions of everything so far: along one dimension, which stays. Floats accumulate in double, integers in 64 bits.

#include "core/builder.h"
#include "core/ops/combine.h"
#include "core/ops/op_list.h"
#include "core/ops/rules.h"

namespace lockstep {
namespace {

absl::Status InferCumulativeSum(InferContext& c) {
  const int64_t dim = c.attr<int64_t>("dim");
  if (!c.shape(0).has_dim(dim)) return c.Error("C1") << "dim " << dim << " is outside " << c.operand(0);
  RETURN_IF_ERROR(ops::CheckArithmetic(c, "C2"));
  return c.SetResult(c.operand(0));
}

absl::Status EvalCumulativeSum(EvalContext& c) {
  const Tensor& x = c.operand(0);
  if (x.num_elements() == 0) return absl::OkStatus();
  const int64_t dim = c.attr<int64_t>("dim");
  const bool exclusive = c.attr<bool>("exclusive"), reverse = c.attr<bool>("reverse");
  const int64_t extent = x.shape()[dim], inner = x.shape().Strides()[static_cast<size_t>(dim)];
  DispatchDType(x.dtype(), [&](auto tag) {
    using T = typename decltype(tag)::type;
    const auto from = x.data<T>();
    const auto out = c.result().mutable_data<T>();
    for (int64_t line = 0; line < x.num_elements() / extent; ++line) {
      const int64_t first = line / inner * extent * inner + line % inner;
      Accumulator<T> sum = 0;
      for (int64_t i = 0; i < extent; ++i) {
        const auto at = static_cast<size_t>(first + (reverse ? extent - 1 - i : i) * inner);
        const Accumulator<T> before = sum;
        sum = ops::Combine(ReduceKind::kSum, sum, static_cast<Accumulator<T>>(from[at]));
        out[at] = ConvertElement<T>(exclusive ? before : sum);
      }
    }
  });
  return absl::OkStatus();
}

// Element j is in the sums of those after it, and what was summed from the front comes back from the end.
void CumulativeSumVjp(VjpContext& c) {
  AttributeMap back = c.attributes();
  back["reverse"] = !c.attr<bool>("reverse");
  c.Contribute(0, c.b().Op("cumulative_sum", {c.grad()}, std::move(back)));
}

// Linear, and other dimensions than dim do not meet.
void PlaceCumulativeSum(PlacementContext& c) {
  const Placement& x = c.operand(0);
  if (x.is_partial() && !ops::IsLinearPartial(x, c.dtype(0))) return c.Require(0, Placement::Replicated());
  const auto same_but_dim = [&](int64_t d) { return d == c.attr<int64_t>("dim") ? -1 : d; };
  ops::PlaceDataMovement(c, same_but_dim, same_but_dim);
}

}  // namespace

//===-- cumulative_sum --------------------------------------------------------------------------------------------===//
const OpDef& CumulativeSumOp() {
  static const OpDef def = OpDef("cumulative_sum")
                               .Doc(
                                   "Element i along dim is the sum of the elements of x up to i, or of those from i on "
                                   "if reverse. Floats are summed in f64 and rounded once; integers wrap around.")
                               .Operand("x")
                               .Attr<int64_t>("dim", "the dimension along which it sums")
                               .OptionalAttr<bool>("exclusive", false, "leave out element i itself: the first sum is 0")
                               .OptionalAttr<bool>("reverse", false, "sum from the end")
                               .Trait(kOpaque)
                               .Constraint("C1", "dim is a dimension of x")
                               .Constraint("C2", "x is not bool")
                               .Infer(InferCumulativeSum)
                               .Eval(EvalCumulativeSum)
                               .Vjp(CumulativeSumVjp)
                               .Place(PlaceCumulativeSum);
  return def;
}

}  // namespace lockstep
