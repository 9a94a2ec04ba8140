// Cumulative reductions along one dimension, which the result keeps. Floats accumulate in double, integers in 64 bits.

#include "core/builder.h"
#include "core/ops/combine.h"
#include "core/ops/op_list.h"
#include "core/ops/rules.h"

namespace lockstep {
namespace {

absl::Status InferCumulative(InferContext& c) {
  const int64_t dim = c.attr<int64_t>("dim");
  if (!c.shape(0).has_dim(dim)) return c.Error("C1") << "dim " << dim << " is outside " << c.operand(0);
  RETURN_IF_ERROR(ops::CheckArithmetic(c, "C2"));
  return c.SetResult(c.operand(0));
}

absl::Status EvalCumulative(EvalContext& c, ReduceKind kind) {
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
      Accumulator<T> total = kind == ReduceKind::kProd ? 1 : 0;
      for (int64_t i = 0; i < extent; ++i) {
        const auto at = static_cast<size_t>(first + (reverse ? extent - 1 - i : i) * inner);
        const Accumulator<T> before = total;
        total = ops::Combine(kind, total, static_cast<Accumulator<T>>(from[at]));
        out[at] = ConvertElement<T>(exclusive ? before : total);
      }
    }
  });
  return absl::OkStatus();
}

// The gradient of a cumulative sum: element j is a term of the sums that follow it, so that the gradient is a
// cumulative sum in the opposite direction.
Value SummedBack(VjpContext& c, Value of_results) {
  AttributeMap back = c.attributes();
  back["reverse"] = !c.attr<bool>("reverse");
  return c.b().Op("cumulative_sum", {of_results}, std::move(back));
}

void CumulativeSumVjp(VjpContext& c) { c.Contribute(0, SummedBack(c, c.grad())); }

// With the products y, the gradient of x[j] before the first zero is the sum of g[i] * y[i] / x[j] over the products i
// that contain x[j]. After the first zero it is zero. For the first zero itself, the products of the other factors are
// used: the products of x with that zero replaced by 1.
void CumulativeProdVjp(VjpContext& c) {
  Builder& b = c.b();
  const Value x = c.operand(0), zero = b.SplatLike(0.0, x), one = b.SplatLike(1.0, x);
  const Value is_zero = b.Compare(x, zero, "eq");
  const AttributeMap so_far = {{"dim", c.attr<int64_t>("dim")}, {"reverse", c.attr<bool>("reverse")}};
  const Value zeros = b.Op("cumulative_sum", {b.Convert(is_zero, x.dtype())}, so_far);
  const Value is_first_zero = b.Op("and", {is_zero, b.Compare(zeros, one, "eq")});
  const Value others = b.Op("cumulative_prod", {b.Select(is_first_zero, one, x)}, c.attributes());
  const Value of_zero = SummedBack(c, b.Mul(c.grad(), others));
  const Value of_factor = b.Div(SummedBack(c, b.Mul(c.grad(), c.result())), b.Select(is_zero, one, x));
  c.Contribute(0, b.Select(b.Compare(zeros, zero, "eq"), of_factor, b.Select(is_first_zero, of_zero, zero)));
}

// The sum is linear, and independent along all dimensions except dim.
void PlaceCumulativeSum(PlacementContext& c) {
  const Placement& x = c.operand(0);
  if (x.is_partial() && !ops::IsLinearPartial(x, c.dtype(0))) return c.Require(0, Placement::Replicated());
  const auto same_but_dim = [&](int64_t d) { return d == c.attr<int64_t>("dim") ? -1 : d; };
  ops::PlaceDataMovement(c, same_but_dim, same_but_dim);
}

void PlaceCumulativeProd(PlacementContext& c) {
  const Placement& x = c.operand(0);
  if (x.is_partial() && !x.is_partial(ReduceKind::kProd)) return c.Require(0, Placement::Replicated());
  const auto same_but_dim = [&](int64_t d) { return d == c.attr<int64_t>("dim") ? -1 : d; };
  ops::PlaceDataMovement(c, same_but_dim, same_but_dim);
}

// The common part of the two ops.
OpDef Cumulative(const char* name, const char* doc, ReduceKind kind) {
  const std::string verb = kind == ReduceKind::kProd ? "multiply" : "sum",
                    neutral = kind == ReduceKind::kProd ? "1" : "0";
  return OpDef(name)
      .Doc(doc)
      .Operand("x")
      .Attr<int64_t>("dim", "the dimension along which it runs")
      .OptionalAttr<bool>("exclusive", false, "leave out element i itself: the first result is " + neutral)
      .OptionalAttr<bool>("reverse", false, verb + " from the end")
      .Trait(kOpaque)
      .Constraint("C1", "dim is a dimension of x")
      .Constraint("C2", "x is not bool")
      .Infer(InferCumulative)
      .Eval([kind](EvalContext& c) { return EvalCumulative(c, kind); });
}

}  // namespace

//===-- cumulative_sum --------------------------------------------------------------------------------------------===//
const OpDef& CumulativeSumOp() {
  static const OpDef def =
      Cumulative(
          "cumulative_sum",
          "Element i along dim is the sum of the elements of x up to i, or of those from i on if reverse. Floats "
          "are summed in f64 and rounded once; integers wrap around.",
          ReduceKind::kSum)
          .Vjp(CumulativeSumVjp)
          .Place(PlaceCumulativeSum);
  return def;
}

//===-- cumulative_prod -------------------------------------------------------------------------------------------===//
const OpDef& CumulativeProdOp() {
  static const OpDef def =
      Cumulative("cumulative_prod",
                 "Element i along dim is the product of the elements of x up to i, or of those from i on if reverse. "
                 "Floats are multiplied in f64 and rounded once; integers wrap around.",
                 ReduceKind::kProd)
          .Vjp(CumulativeProdVjp)
          .Place(PlaceCumulativeProd);
  return def;
}

}  // namespace lockstep
