// Ops that create or move data without arithmetic.

#include <algorithm>

#include "core/builder.h"
#include "core/ops/op_list.h"
#include "core/ops/rules.h"

namespace lockstep {
namespace {

using Ints = std::vector<int64_t>;

// Copies one element for each index of `shape`. f(index) returns its row-major positions in x and in the result.
template <typename F>
void CopyElements(const Tensor& x, Tensor& result, const Shape& shape, F f) {
  DispatchDType(x.dtype(), [&](auto tag) {
    using T = typename decltype(tag)::type;
    const auto from = x.data<T>();
    const auto to = result.mutable_data<T>();
    ops::ForEachIndex(shape, [&](const Ints& index) {
      const auto [from_at, to_at] = f(index);
      to[At(to_at)] = from[At(from_at)];
    });
  });
}

// --- iota ------------------------------------------------------------------------------------------------------------

absl::Status InferIota(InferContext& c) {
  const Ints& extents = c.attr<Ints>("shape");
  RETURN_IF_ERROR(ops::CheckExtents(c, "C1", extents));
  const Shape shape(extents);
  if (!shape.has_dim(c.attr<int64_t>("dim")))
    return c.Error("C2") << "dim " << c.attr<int64_t>("dim") << " is outside " << shape;
  if (c.attr<DType>("dtype") == DType::kBool) return c.Error("C3") << "dtype bool, expected floats or integers";
  return c.SetResult(c.attr<DType>("dtype"), shape);
}

absl::Status EvalIota(EvalContext& c) {
  DispatchDType(c.result().dtype(), [&](auto tag) {
    using T = typename decltype(tag)::type;
    const auto out = c.result().mutable_data<T>();
    size_t at = 0;
    ops::ForEachIndex(c.result().shape(),
                      [&](const Ints& index) { out[at++] = ConvertElement<T>(index[At(c.attr<int64_t>("dim"))]); });
  });
  return absl::OkStatus();
}

Affine CountOfIota(const IndexContext& c) { return Affine::Index(At(c.result().rank()), At(c.attr<int64_t>("dim"))); }

void PlaceIota(PlacementContext& c) {
  // A slice along another dimension is a smaller iota. A slice along `dim` depends on the rank and needs a shard.
  if (!c.wanted() || !c.wanted()->is_split() || c.wanted()->is_split(c.attr<int64_t>("dim"))) return;
  c.Result(*c.wanted());
}

// --- reshape ---------------------------------------------------------------------------------------------------------

absl::Status InferReshape(InferContext& c) {
  const Ints& extents = c.attr<Ints>("shape");
  RETURN_IF_ERROR(ops::CheckExtents(c, "C1", extents));
  const Shape shape(extents);
  if (shape.num_elements() != c.shape(0).num_elements()) {
    return c.Error("C2") << c.operand(0) << " has " << c.shape(0).num_elements() << " elements, " << shape << " has "
                         << shape.num_elements();
  }
  return c.SetResult(c.dtype(0), shape);
}

int64_t ProductBefore(const Shape& shape, int64_t dim) {
  int64_t product = 1;
  for (int64_t i = 0; i < dim; ++i) product *= shape[i];
  return product;
}

// True if rank i's slice of `from` along dimension d, reshaped, is rank i's slice of `to` along dimension e.
bool SlicesAgree(const Shape& from, int64_t d, const Shape& to, int64_t e, int64_t ranks) {
  return from[d] % ranks == 0 && to[e] % ranks == 0 && ProductBefore(from, d) == ProductBefore(to, e);
}

// The dimension of `to` along which a split of `from` along d can be kept, -1 if there is none. Dimensions of extent 1
// cannot be split, so there is at most one.
int64_t DimAfterReshape(const Shape& from, int64_t d, const Shape& to, int64_t ranks) {
  if (from.num_elements() == 0) return -1;
  for (int64_t e = 0; e < to.rank(); ++e) {
    if (SlicesAgree(from, d, to, e, ranks)) return e;
  }
  return -1;
}

void PlaceReshape(PlacementContext& c) {
  const Shape &from = c.shape(0), &to = c.result_type().shape;
  ops::PlaceDataMovement(
      c, [&](int64_t d) { return DimAfterReshape(from, d, to, c.axis_size()); },
      [&](int64_t e) { return DimAfterReshape(to, e, from, c.axis_size()); });
}

// --- transpose -------------------------------------------------------------------------------------------------------

absl::Status InferTranspose(InferContext& c) {
  const Ints& permutation = c.attr<Ints>("permutation");
  Ints sorted = permutation;
  std::sort(sorted.begin(), sorted.end());
  bool valid = static_cast<int64_t>(sorted.size()) == c.shape(0).rank();
  for (size_t i = 0; i < sorted.size(); ++i) valid &= sorted[i] == static_cast<int64_t>(i);
  if (!valid)
    return c.Error("C1") << ListToString(permutation) << " is not a permutation of the dimensions of " << c.operand(0);
  Ints extents;
  for (int64_t dim : permutation) extents.push_back(c.shape(0)[dim]);
  return c.SetResult(c.dtype(0), Shape(extents));
}

Ints Inverse(const Ints& permutation) {
  Ints inverse(permutation.size());
  for (size_t i = 0; i < permutation.size(); ++i) inverse[At(permutation[i])] = static_cast<int64_t>(i);
  return inverse;
}

absl::Status EvalTranspose(EvalContext& c) {
  const Ints &permutation = c.attr<Ints>("permutation"), strides = c.operand(0).shape().Strides();
  CopyElements(c.operand(0), c.result(), c.result().shape(), [&, to = int64_t{0}](const Ints& index) mutable {
    int64_t from = 0;
    for (size_t i = 0; i < index.size(); ++i) from += index[i] * strides[At(permutation[i])];
    return std::pair(from, to++);
  });
  return absl::OkStatus();
}

IndexMap SourceOfTranspose(const IndexContext& c) {
  IndexMap source;
  for (int64_t dim : Inverse(c.attr<Ints>("permutation")))
    source.push_back(Affine::Index(At(c.result().rank()), At(dim)));
  return source;
}

void PlaceTranspose(PlacementContext& c) {
  const Ints& permutation = c.attr<Ints>("permutation");
  ops::PlaceDataMovement(
      c, [&](int64_t d) { return Inverse(permutation)[At(d)]; }, [&](int64_t e) { return permutation[At(e)]; });
}

// --- broadcast -------------------------------------------------------------------------------------------------------

absl::Status InferBroadcast(InferContext& c) {
  const Ints &extents = c.attr<Ints>("shape"), &dims = c.attr<Ints>("dims");
  RETURN_IF_ERROR(ops::CheckExtents(c, "C1", extents));
  const Shape shape(extents);
  if (static_cast<int64_t>(dims.size()) != c.shape(0).rank()) {
    return c.Error("C2") << "dims " << ListToString(dims) << " for operand " << c.operand(0)
                         << ", expected one for each of its dimensions";
  }
  RETURN_IF_ERROR(ops::CheckIncreasingDims(c, "C2", dims, shape));
  for (size_t i = 0; i < dims.size(); ++i) {
    const int64_t extent = c.shape(0)[static_cast<int64_t>(i)];
    if (shape[dims[i]] != extent) {
      return c.Error("C3") << "dimension " << i << " of operand " << c.operand(0) << " becomes dimension " << dims[i]
                           << " of " << shape;
    }
  }
  return c.SetResult(c.dtype(0), shape);
}

absl::Status EvalBroadcast(EvalContext& c) {
  const Ints &dims = c.attr<Ints>("dims"), strides = c.operand(0).shape().Strides();
  CopyElements(c.operand(0), c.result(), c.result().shape(), [&, to = int64_t{0}](const Ints& index) mutable {
    int64_t from = 0;
    for (size_t i = 0; i < dims.size(); ++i) from += index[At(dims[i])] * strides[i];
    return std::pair(from, to++);
  });
  return absl::OkStatus();
}

IndexMap SourceOfBroadcast(const IndexContext& c) {
  IndexMap source;
  for (int64_t dim : c.attr<Ints>("dims")) source.push_back(Affine::Index(At(c.result().rank()), At(dim)));
  return source;
}

int64_t IndexOf(const Ints& list, int64_t value) {
  const auto it = std::find(list.begin(), list.end(), value);
  return it == list.end() ? -1 : it - list.begin();
}

void BroadcastVjp(VjpContext& c) {
  const Ints& dims = c.attr<Ints>("dims");
  Ints repeated;
  for (int64_t i = 0; i < c.result().shape().rank(); ++i) {
    if (IndexOf(dims, i) < 0) repeated.push_back(i);
  }
  c.Contribute(0, c.b().ReduceSum(c.grad(), repeated));
}

void PlaceBroadcast(PlacementContext& c) {
  const Ints& dims = c.attr<Ints>("dims");
  const auto& wanted = c.wanted();
  if (c.operand(0).is_replicated() && wanted && wanted->is_split() && IndexOf(dims, wanted->dim()) < 0) {
    c.Result(*wanted);  // a slice of the copies is a broadcast with fewer copies
  } else if (c.operand(0).is_partial()) {
    c.Require(0, Placement::Replicated());  // the operand is reduced, because it is smaller than the result
    c.Result(Placement::Replicated());
  } else {
    ops::PlaceDataMovement(c, [&](int64_t d) { return dims[At(d)]; }, [&](int64_t e) { return IndexOf(dims, e); });
  }
}

}  // namespace

//===-- constant --------------------------------------------------------------------------------------------------===//
const OpDef& ConstantOp() {
  static const OpDef def = OpDef("constant")
                               .Doc("A tensor that is part of the program.")
                               .Attr<Tensor>("value")
                               .Trait(kMovement)
                               .Infer([](InferContext& c) { return c.SetResult(c.attr<Tensor>("value").type()); })
                               .Eval([](EvalContext& c) {
                                 c.result() = c.attr<Tensor>("value");
                                 return absl::OkStatus();
                               })
                               .Precision(PrecisionRule::kAsDeclared)
                               .NoGradient("it has no operands")
                               .Place([](PlacementContext& c) { c.Result(Placement::Replicated()); });
  return def;
}

//===-- iota ------------------------------------------------------------------------------------------------------===//
const OpDef& IotaOp() {
  static const OpDef def = OpDef("iota")
                               .Doc("Counts 0, 1, 2, ... along one dimension.")
                               .Attr<Ints>("shape", "of the result")
                               .PerDim("shape")
                               .Attr<DType>("dtype", "of the result")
                               .Attr<int64_t>("dim", "the dimension along which to count")
                               .Counts(CountOfIota)
                               .Trait(kRematerialised)
                               .Constraint("C1", "the extents of shape are at least 0, and not too large")
                               .Constraint("C2", "dim is a dimension of shape")
                               .Constraint("C3", "dtype is not bool")
                               .Infer(InferIota)
                               .Eval(EvalIota)
                               .Precision(PrecisionRule::kAsDeclared)
                               .NoGradient("it has no operands")
                               .Place(PlaceIota);
  return def;
}

//===-- reshape ---------------------------------------------------------------------------------------------------===//
const OpDef& ReshapeOp() {
  static const OpDef def =
      OpDef("reshape")
          .Doc("The elements of x, in row-major order, under another shape.")
          .Operand("x")
          .Attr<Ints>("shape", "of the result")
          .PerDim("shape")
          .Trait(kMovement)
          .Trait(kKeepsOrder)
          .Constraint("C1", "the extents of shape are at least 0, and not too large")
          .Constraint("C2", "shape has as many elements as x")
          .Infer(InferReshape)
          .Eval([](EvalContext& c) {
            c.result() = c.operand(0).Reshaped(c.result().shape());
            return absl::OkStatus();
          })
          .Precision(PrecisionRule::kFollows)
          .Vjp([](VjpContext& c) { c.Contribute(0, c.b().Reshape(c.grad(), c.operand(0).shape())); })
          .Place(PlaceReshape);
  return def;
}

//===-- transpose -------------------------------------------------------------------------------------------------===//
const OpDef& TransposeOp() {
  static const OpDef def =
      OpDef("transpose")
          .Doc("Dimension i of the result is dimension permutation[i] of x.")
          .Operand("x")
          .Attr<Ints>("permutation")
          .MovesFrom(SourceOfTranspose)
          .Constraint("C1", "permutation is a permutation of the dimensions of x")
          .Infer(InferTranspose)
          .Eval(EvalTranspose)
          .Precision(PrecisionRule::kFollows)
          .Vjp([](VjpContext& c) { c.Contribute(0, c.b().Transpose(c.grad(), Inverse(c.attr<Ints>("permutation")))); })
          .Place(PlaceTranspose);
  return def;
}

//===-- broadcast -------------------------------------------------------------------------------------------------===//
const OpDef& BroadcastOp() {
  static const OpDef def =
      OpDef("broadcast")
          .Doc(
              "Dimension i of x becomes dimension dims[i] of the result; x is repeated along the other dimensions of "
              "the result. Extents are equal: a dimension of extent 1 is not repeated.")
          .Operand("x")
          .Attr<Ints>("shape", "of the result")
          .PerDim("shape")
          .Attr<Ints>("dims", "the dimensions of the result that the dimensions of x become")
          .MovesFrom(SourceOfBroadcast)
          .Trait(kRematerialised)
          .Constraint("C1", "the extents of shape are at least 0, and not too large")
          .Constraint("C2",
                      "dims has one entry for each dimension of x, strictly increasing, each a dimension of shape")
          .Constraint("C3", "dimension i of x has the extent of dimension dims[i] of shape")
          .Infer(InferBroadcast)
          .Eval(EvalBroadcast)
          .Precision(PrecisionRule::kFollows)
          .Vjp(BroadcastVjp)
          .Place(PlaceBroadcast);
  return def;
}

}  // namespace lockstep
