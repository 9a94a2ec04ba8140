// The positions of the largest and smallest elements, and the k first elements in sorted order with their positions.

#include <algorithm>
#include <numeric>

#include "core/builder.h"
#include "core/ops/op_list.h"
#include "core/ops/order.h"
#include "core/ops/rules.h"

namespace lockstep {
namespace {

using Ints = std::vector<int64_t>;

// --- argmax, argmin --------------------------------------------------------------------------------------------------

absl::Status InferArg(InferContext& c) {
  const int64_t dim = c.attr<int64_t>("dim");
  if (!c.shape(0).has_dim(dim)) return c.Error("C1") << "dim " << dim << " is outside " << c.operand(0);
  if (c.shape(0)[dim] == 0) return c.Error("C2") << "dimension " << dim << " of " << c.operand(0) << " is empty";
  if (!IsInteger(c.attr<DType>("dtype")))
    return c.Error("C3") << "dtype " << c.attr<DType>("dtype") << ", expected an integer";
  RETURN_IF_ERROR(ops::CheckArithmetic(c, "C4"));
  return c.SetResult(c.attr<DType>("dtype"), c.shape(0).Without({dim}));
}

// True if a is preferred to b: NaN to any number, else the smaller or the larger number.
template <typename T>
bool IsFoundBefore(T a, T b, bool smallest) {
  if (a != a || b != b) return b == b;
  return smallest ? a < b : b < a;
}

// The position of the smallest or largest of `extent` elements that are `stride` apart; of equal ones the first or
// last.
template <typename T>
int64_t Extreme(const T* x, int64_t extent, int64_t stride, bool smallest, bool last) {
  using Wide = Accumulator<T>;
  int64_t best = 0;
  for (int64_t i = 1; i < extent; ++i) {
    const auto value = static_cast<Wide>(x[i * stride]), found = static_cast<Wide>(x[best * stride]);
    if (IsFoundBefore(value, found, smallest) || (last && !IsFoundBefore(found, value, smallest))) best = i;
  }
  return best;
}

absl::Status EvalArg(EvalContext& c, bool smallest) {
  const Tensor& x = c.operand(0);
  const bool last = c.attr<bool>("last");
  const int64_t dim = c.attr<int64_t>("dim"), extent = x.shape()[dim],
                inner = x.shape().Strides()[static_cast<size_t>(dim)];
  Tensor positions(TensorType{DType::kI64, c.result().shape()});
  const auto out = positions.mutable_data<int64_t>();
  DispatchDType(x.dtype(), [&](auto tag) {
    using T = typename decltype(tag)::type;
    for (size_t i = 0; i < out.size(); ++i) {
      const int64_t outer_at = static_cast<int64_t>(i) / inner, inner_at = static_cast<int64_t>(i) % inner;
      const T* line = x.data<T>().data() + outer_at * extent * inner + inner_at;
      out[i] = Extreme(line, extent, inner, smallest, last);
    }
  });
  c.result() = positions.Converted(c.result().dtype());
  return absl::OkStatus();
}

void PlaceArg(PlacementContext& c) {
  const int64_t dim = c.attr<int64_t>("dim");
  if (c.operand(0).is_partial()) return c.Require(0, Placement::Replicated());
  ops::PlaceDataMovement(
      c, [dim](int64_t d) { return d == dim ? -1 : d - (d > dim); }, [dim](int64_t d) { return d + (d >= dim); });
}

// The common part of argmax and argmin.
OpDef Arg(const char* name, const char* doc, bool smallest) {
  return OpDef(name)
      .Doc(doc)
      .Operand("x")
      .Attr<int64_t>("dim", "the dimension to search; it is removed")
      .OptionalAttr<DType>("dtype", DType::kI64, "of the result")
      .OptionalAttr<bool>("last", false, "take the last of equal elements, not the first")
      .Trait(kOpaque)
      .Constraint("C1", "dim is a dimension of x")
      .Constraint("C2", "the dimension is not empty")
      .Constraint("C3", "dtype is an integer dtype")
      .Constraint("C4", "x is not bool")
      .Infer(InferArg)
      .Eval([smallest](EvalContext& c) { return EvalArg(c, smallest); })
      .NoGradient("its result is an integer")
      .Place(PlaceArg);
}

// --- top_k -----------------------------------------------------------------------------------------------------------

absl::Status InferTopK(InferContext& c) {
  const int64_t dim = c.attr<int64_t>("dim"), k = c.attr<int64_t>("k");
  if (!c.shape(0).has_dim(dim)) return c.Error("C1") << "dim " << dim << " is outside " << c.operand(0);
  if (k < 0 || k > c.shape(0)[dim])
    return c.Error("C2") << "k is " << k << " for dimension " << dim << " of " << c.operand(0);
  RETURN_IF_ERROR(ops::CheckArithmetic(c, "C3"));
  const Shape shape = c.shape(0).WithDim(dim, k);
  return c.SetResults({TensorType{c.dtype(0), shape}, TensorType{DType::kI64, shape}});
}

absl::Status EvalTopK(EvalContext& c) {
  const Tensor& x = c.operand(0);
  if (x.num_elements() == 0) return absl::OkStatus();
  const int64_t dim = c.attr<int64_t>("dim"), k = c.attr<int64_t>("k");
  const bool largest = c.attr<bool>("largest");
  const int64_t extent = x.shape()[dim], inner = x.shape().Strides()[static_cast<size_t>(dim)];
  const auto indices = c.result(1).mutable_data<int64_t>();
  DispatchDType(x.dtype(), [&](auto tag) {
    using T = typename decltype(tag)::type;
    const auto values = c.result(0).mutable_data<T>();
    for (int64_t line = 0; line < x.num_elements() / extent; ++line) {
      const int64_t block = line / inner, column = line % inner;
      const T* from = x.data<T>().data() + block * extent * inner + column;
      Ints order(static_cast<size_t>(extent));
      std::iota(order.begin(), order.end(), int64_t{0});
      std::stable_sort(order.begin(), order.end(), [&](int64_t i, int64_t j) {
        const auto a = static_cast<Accumulator<T>>(from[i * inner]), b = static_cast<Accumulator<T>>(from[j * inner]);
        return largest ? ops::IsLess(b, a) : ops::IsLess(a, b);
      });
      for (int64_t i = 0; i < k; ++i) {
        const auto to = static_cast<size_t>((block * k + i) * inner + column);
        indices[to] = order[static_cast<size_t>(i)];
        values[to] = from[order[static_cast<size_t>(i)] * inner];
      }
    }
  });
  return absl::OkStatus();
}

// The permutation that exchanges dimension `dim` and the last one.
Ints LastSwappedWith(int64_t dim, int64_t rank) {
  Ints permutation(static_cast<size_t>(rank));
  std::iota(permutation.begin(), permutation.end(), int64_t{0});
  std::swap(permutation[static_cast<size_t>(dim)], permutation.back());
  return permutation;
}

// Each gradient is added at the position of its value in x.
void TopKVjp(VjpContext& c) {
  if (!c.grad(0)) return;
  Builder& b = c.b();
  const Shape& shape = c.operand(0).shape();
  const int64_t dim = c.attr<int64_t>("dim"), last = shape.rank() - 1;
  Value indices = c.result(1), grad = c.grad(0);
  if (dim != last) {
    indices = b.Transpose(indices, LastSwappedWith(dim, shape.rank()));
    grad = b.Transpose(grad, LastSwappedWith(dim, shape.rank()));
  }
  const Value sum = b.ScatterSum(indices, grad, last, last, shape[dim]);
  c.Contribute(0, dim == last ? sum : b.Transpose(sum, LastSwappedWith(dim, shape.rank())));
}

void PlaceTopK(PlacementContext& c) {
  ops::PlaceIndependentRows(c, [&](int64_t dim) { return dim != c.attr<int64_t>("dim"); });
}

}  // namespace

//===-- argmax ----------------------------------------------------------------------------------------------------===//
const OpDef& ArgMaxOp() {
  static const OpDef def = Arg("argmax",
                               "The position of the largest element along dim, the first if there are several; NaN "
                               "counts as the largest.",
                               /*smallest=*/false)
                               .Precision(PrecisionRule::kFollows);
  return def;
}

//===-- argmin ----------------------------------------------------------------------------------------------------===//
const OpDef& ArgMinOp() {
  static const OpDef def = Arg("argmin",
                               "The position of the smallest element along dim, the first if there are several; NaN "
                               "counts as the smallest.",
                               /*smallest=*/true)
                               .Precision(PrecisionRule::kFollows);
  return def;
}

//===-- top_k -----------------------------------------------------------------------------------------------------===//
const OpDef& TopKOp() {
  static const OpDef def =
      OpDef("top_k")
          .Doc(
              "The k largest elements along dim in decreasing order, or the k smallest in increasing order, and their "
              "positions in x. Equal elements are in order of their positions. NaN is the largest.")
          .Operand("x")
          .Result("values")
          .Result("indices")
          .Attr<int64_t>("dim", "the dimension that is searched")
          .Attr<int64_t>("k", "the number of elements; the whole extent sorts x")
          .OptionalAttr<bool>("largest", true)
          .Trait(kOpaque)
          .Constraint("C1", "dim is a dimension of x")
          .Constraint("C2", "k is at least 0, and no more than the extent of dim")
          .Constraint("C3", "x is not bool")
          .Infer(InferTopK)
          .Eval(EvalTopK)
          .Precision(PrecisionRule::kFollows)
          .Vjp(TopKVjp)
          .Place(PlaceTopK);
  return def;
}

}  // namespace lockstep
