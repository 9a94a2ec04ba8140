// Ops that concatenate, slice and pad tensors.

#include "core/builder.h"
#include "core/ops/op_list.h"
#include "core/ops/rules.h"

namespace lockstep {
namespace {

using Ints = std::vector<int64_t>;

// Copies elements of x into `result`. Element `index` of `shape` is at from_start + index * from_stride in x and at
// to_start + index in the result.
void CopyBox(const Tensor& x, Tensor& result, const Shape& shape, const Ints& from_start, const Ints& from_stride,
             const Ints& to_start) {
  const Ints from_strides = x.shape().Strides(), to_strides = result.shape().Strides();
  DispatchDType(x.dtype(), [&](auto tag) {
    using T = typename decltype(tag)::type;
    const auto from = x.data<T>();
    const auto to = result.mutable_data<T>();
    ops::ForEachIndex(shape, [&](const Ints& index) {
      int64_t from_at = 0, to_at = 0;
      for (size_t i = 0; i < index.size(); ++i) {
        from_at += (from_start[i] + index[i] * from_stride[i]) * from_strides[i];
        to_at += (to_start[i] + index[i]) * to_strides[i];
      }
      to[At(to_at)] = from[At(from_at)];
    });
  });
}

absl::Status CheckEntryPerDim(const InferContext& c, const char* name) {
  const Ints& list = c.attr<Ints>(name);
  if (static_cast<int64_t>(list.size()) == c.shape(0).rank()) return absl::OkStatus();
  return c.Error("C1") << name << " " << ListToString(list) << " for operand " << c.operand(0)
                       << ", expected one entry for each dimension";
}

// --- concat ----------------------------------------------------------------------------------------------------------

absl::Status InferConcat(InferContext& c) {
  const int64_t dim = c.attr<int64_t>("dim");
  if (!c.shape(0).has_dim(dim)) return c.Error("C1") << "dim " << dim << " is outside " << c.operand(0);
  Ints extents = c.shape(0).dims();
  for (size_t i = 1; i < c.num_operands(); ++i) {
    const bool fits = c.dtype(i) == c.dtype(0) && c.shape(i).rank() == c.shape(0).rank() &&
                      c.shape(i).WithDim(dim, 0) == c.shape(0).WithDim(dim, 0);
    if (!fits)
      return c.Error("C2") << "operands " << c.operand(0) << " and " << c.operand(i)
                           << " differ in more than dimension " << dim;
    extents[At(dim)] += c.shape(i)[dim];
  }
  RETURN_IF_ERROR(ops::CheckExtents(c, "C3", extents));
  return c.SetResult(c.dtype(0), Shape(extents));
}

absl::Status EvalConcat(EvalContext& c) {
  const int64_t dim = c.attr<int64_t>("dim");
  const size_t rank = At(c.result().shape().rank());
  Ints start(rank, 0);
  for (size_t i = 0; i < c.num_operands(); ++i) {
    CopyBox(c.operand(i), c.result(), c.operand(i).shape(), Ints(rank, 0), Ints(rank, 1), start);
    start[At(dim)] += c.operand(i).shape()[dim];
  }
  return absl::OkStatus();
}

void ConcatVjp(VjpContext& c) {
  const int64_t dim = c.attr<int64_t>("dim");
  Ints start(At(c.result().shape().rank()), 0), limit = c.result().shape().dims();
  for (size_t i = 0; i < c.num_operands(); ++i) {
    limit[At(dim)] = start[At(dim)] + c.operand(i).shape()[dim];
    c.Contribute(i, c.b().Slice(c.grad(), start, limit));
    start = Ints(start.size(), 0);
    start[At(dim)] = limit[At(dim)];
  }
}

void PlaceConcat(PlacementContext& c) {
  // Operands split along another dimension, or with the same partial placement, are concatenated on each rank.
  bool same_partial = c.operand(0).is_partial();
  for (size_t i = 1; i < c.num_operands(); ++i) same_partial &= c.operand(i) == c.operand(0);
  if (same_partial) return c.Result(c.operand(0));
  const int64_t dim = c.attr<int64_t>("dim");
  ops::PlaceIndependentRows(c, [dim](int64_t split) { return split != dim; });
}

// --- slice -----------------------------------------------------------------------------------------------------------

absl::Status InferSlice(InferContext& c) {
  for (const char* name : {"start", "limit", "stride"}) RETURN_IF_ERROR(CheckEntryPerDim(c, name));
  const Ints &start = c.attr<Ints>("start"), &limit = c.attr<Ints>("limit"), &stride = c.attr<Ints>("stride");
  Ints extents;
  for (size_t i = 0; i < start.size(); ++i) {
    const int64_t extent = c.shape(0).dims()[i];
    if (start[i] < 0 || start[i] > limit[i] || limit[i] > extent) {
      return c.Error("C2") << "from " << start[i] << " to " << limit[i] << " in dimension " << i << " of "
                           << c.operand(0);
    }
    if (stride[i] < 1)
      return c.Error("C3") << "stride " << stride[i] << " in dimension " << i << ", expected at least 1";
    const int64_t length = limit[i] - start[i];
    extents.push_back(length / stride[i] + (length % stride[i] != 0));
  }
  return c.SetResult(c.dtype(0), Shape(extents));
}

absl::Status EvalSlice(EvalContext& c) {
  CopyBox(c.operand(0), c.result(), c.result().shape(), c.attr<Ints>("start"), c.attr<Ints>("stride"),
          Ints(c.attr<Ints>("start").size(), 0));
  return absl::OkStatus();
}

IndexMap SourceOfSlice(const IndexContext& c) {
  const Ints &start = c.attr<Ints>("start"), &stride = c.attr<Ints>("stride");
  IndexMap source;
  for (size_t i = 0; i < start.size(); ++i) source.push_back(Affine::Index(start.size(), i, stride[i], start[i]));
  return source;
}

// Inserts stride - 1 zeros between neighbours of x along `dim`: the extent n becomes (n - 1) * stride + 1.
Value Spread(Builder& b, Value x, int64_t dim, int64_t stride) {
  if (!x || stride == 1 || x.shape()[dim] == 1) return x;
  const int64_t extent = x.shape()[dim];
  Ints apart = x.shape().dims();
  apart.insert(apart.begin() + dim + 1, 1);
  Ints none(apart.size(), 0), high = none;
  high[At(dim + 1)] = stride - 1;
  const Value padded = b.Pad(b.Reshape(x, Shape(apart)), none, high);
  const Value spread = b.Reshape(padded, x.shape().WithDim(dim, extent * stride));
  return b.Slice(spread, Ints(At(x.shape().rank()), 0), x.shape().WithDim(dim, (extent - 1) * stride + 1).dims());
}

void SliceVjp(VjpContext& c) {
  const Ints &start = c.attr<Ints>("start"), &stride = c.attr<Ints>("stride");
  const Shape& shape = c.operand(0).shape();
  Value g = c.grad();
  if (g.shape().num_elements() == 0) return c.Contribute(0, c.b().SplatLike(0.0, c.operand(0)));
  for (int64_t dim = 0; dim < shape.rank(); ++dim) g = Spread(c.b(), g, dim, stride[At(dim)]);
  if (!g) return;
  Ints high;
  for (int64_t dim = 0; dim < shape.rank(); ++dim) high.push_back(shape[dim] - start[At(dim)] - g.shape()[dim]);
  c.Contribute(0, c.b().Pad(g, start, high));
}

void PlaceSlice(PlacementContext& c) {
  const Ints &start = c.attr<Ints>("start"), &limit = c.attr<Ints>("limit"), &stride = c.attr<Ints>("stride");
  // A dimension that is kept whole may be split.
  const auto same_if_whole = [&](int64_t d) {
    return start[At(d)] == 0 && limit[At(d)] == c.shape(0)[d] && stride[At(d)] == 1 ? d : -1;
  };
  ops::PlaceDataMovement(c, same_if_whole, same_if_whole);
}

// --- pad -------------------------------------------------------------------------------------------------------------

absl::Status InferPad(InferContext& c) {
  for (const char* name : {"low", "high"}) RETURN_IF_ERROR(CheckEntryPerDim(c, name));
  const Ints &low = c.attr<Ints>("low"), &high = c.attr<Ints>("high");
  constexpr int64_t kMost = int64_t{1} << 56;  // so that the sum cannot overflow
  Ints extents;
  for (size_t i = 0; i < low.size(); ++i) {
    if (low[i] < 0 || high[i] < 0)
      return c.Error("C2") << "padding " << low[i] << " and " << high[i] << " in dimension " << i;
    if (low[i] > kMost || high[i] > kMost)
      return c.Error("C3") << "padding " << low[i] << " and " << high[i] << " in dimension " << i << " is too large";
    extents.push_back(low[i] + c.shape(0).dims()[i] + high[i]);
  }
  RETURN_IF_ERROR(ops::CheckExtents(c, "C3", extents));
  return c.SetResult(c.dtype(0), Shape(extents));
}

absl::Status EvalPad(EvalContext& c) {
  const Ints& low = c.attr<Ints>("low");
  c.result() = Tensor::Full(c.result().type(), c.attr<double>("value"));
  CopyBox(c.operand(0), c.result(), c.operand(0).shape(), Ints(low.size(), 0), Ints(low.size(), 1), low);
  return absl::OkStatus();
}

void PadVjp(VjpContext& c) {
  const Ints& low = c.attr<Ints>("low");
  Ints limit;
  for (size_t i = 0; i < low.size(); ++i) limit.push_back(low[i] + c.operand(0).shape().dims()[i]);
  c.Contribute(0, c.b().Slice(c.grad(), low, limit));
}

// True if the padding `value`, reduced by `kind` over any number of ranks, is `value` again.
bool SurvivesReduction(double value, ReduceKind kind) {
  if (kind == ReduceKind::kSum) return value == 0.0;
  if (kind == ReduceKind::kProd) return value == 0.0 || value == 1.0;
  return true;
}

void PlacePad(PlacementContext& c) {
  const Ints &low = c.attr<Ints>("low"), &high = c.attr<Ints>("high");
  if (c.operand(0).is_partial() && !SurvivesReduction(c.attr<double>("value"), c.operand(0).reduce())) {
    c.Require(0, Placement::Replicated());
    return;
  }
  const auto same_if_whole = [&](int64_t d) { return low[At(d)] == 0 && high[At(d)] == 0 ? d : -1; };
  ops::PlaceDataMovement(c, same_if_whole, same_if_whole);
}

}  // namespace

//===-- concat ----------------------------------------------------------------------------------------------------===//
const OpDef& ConcatOp() {
  static const OpDef def = OpDef("concat")
                               .Doc("The operands one after the other along dimension dim.")
                               .Variadic("xs")
                               .Attr<int64_t>("dim")
                               .Trait(kMovement)
                               .Constraint("C1", "dim is a dimension of the operands")
                               .Constraint("C2", "the operands have the same dtype, and the same extents but for dim")
                               .Constraint("C3", "the result is not too large")
                               .Infer(InferConcat)
                               .Eval(EvalConcat)
                               .Precision(PrecisionRule::kFollows)
                               .Vjp(ConcatVjp)
                               .Place(PlaceConcat);
  return def;
}

//===-- slice -----------------------------------------------------------------------------------------------------===//
const OpDef& SliceOp() {
  static const OpDef def = OpDef("slice")
                               .Doc("In each dimension the elements start, start + stride, ... below limit.")
                               .Operand("x")
                               .Attr<Ints>("start")
                               .Attr<Ints>("limit", "exclusive")
                               .PerDim("limit")
                               .Attr<Ints>("stride")
                               .MovesFrom(SourceOfSlice)
                               .Constraint("C1", "start, limit and stride have one entry for each dimension of x")
                               .Constraint("C2", "0 <= start <= limit <= the extent of x, in each dimension")
                               .Constraint("C3", "stride is at least 1")
                               .Infer(InferSlice)
                               .Eval(EvalSlice)
                               .Precision(PrecisionRule::kFollows)
                               .Vjp(SliceVjp)
                               .Place(PlaceSlice);
  return def;
}

//===-- pad -------------------------------------------------------------------------------------------------------===//
const OpDef& PadOp() {
  static const OpDef def =
      OpDef("pad")
          .Doc("x with low[i] elements of `value` before it and high[i] after it in each dimension i.")
          .Operand("x")
          .Attr<Ints>("low")
          .Attr<Ints>("high")
          .OptionalAttr<double>("value", 0.0, "converted to the dtype of x")
          .Trait(kMovement)
          .Constraint("C1", "low and high have one entry for each dimension of x")
          .Constraint("C2", "low and high are at least 0")
          .Constraint("C3", "the result is not too large")
          .Infer(InferPad)
          .Eval(EvalPad)
          .Precision(PrecisionRule::kFollows)
          .Vjp(PadVjp)
          .Place(PlacePad);
  return def;
}

}  // namespace lockstep
