// Collectives: ops in which all ranks of one mesh axis take part. Their reference meaning is a function of all ranks' tensors.
// Reductions run in rank order, in float for halves and else in the dtype itself, so that replicas are bitwise equal.
//
// Gradients are those of the sum of all ranks' losses: what a rank receives as the gradient of its operand counts the losses of its peers
// too. passes/distribute runs after autodiff, so these serve graphs that hold collectives when they are differentiated.

#include <cstring>

#include "core/builder.h"
#include "core/ops/combine.h"
#include "core/ops/op_list.h"
#include "core/ops/rules.h"

namespace lockstep {
namespace {

using Ints = std::vector<int64_t>;

// --- Inference ----------------------------------------------------------------------------------------------------------

constexpr char kAxisConstraint[] = "axis is an axis of the mesh";

absl::StatusOr<int64_t> AxisSize(const InferContext& c) {
  const absl::StatusOr<int64_t> size = c.axis_size();
  if (!size.ok()) return c.Error("C1") << size.status().message();
  return *size;
}

absl::Status CheckDim(const InferContext& c) {
  const int64_t dim = c.attr<int64_t>("dim");
  if (!c.shape(0).has_dim(dim)) return c.Error("C2") << "dim " << dim << " is outside " << c.operand(0);
  return absl::OkStatus();
}

absl::Status CheckKind(const InferContext& c, std::string_view id, std::string_view bool_id) {
  const std::string& name = c.attr<std::string>("kind");
  const std::optional<ReduceKind> kind = ReduceKindFromName(name);
  if (!kind) return c.Error(id) << "kind '" << name << "', expected sum, min, max, prod or mean";
  for (size_t i = 0; i < c.num_operands(); ++i) {
    if (c.dtype(i) == DType::kBool && kind != ReduceKind::kMin && kind != ReduceKind::kMax) {
      return c.Error(bool_id) << "kind " << name << " of operand " << c.operand(i);
    }
  }
  return absl::OkStatus();
}

absl::Status InferAllReduce(InferContext& c) {
  RETURN_IF_ERROR(AxisSize(c).status());
  RETURN_IF_ERROR(CheckKind(c, "C2", "C3"));
  std::vector<TensorType> types;
  for (size_t i = 0; i < c.num_operands(); ++i) types.push_back(c.operand(i));
  return c.SetResults(std::move(types));
}

// Dimension `dim` divided among the ranks.
absl::Status InferSlice(InferContext& c) {
  ASSIGN_OR_RETURN(const int64_t size, AxisSize(c));
  RETURN_IF_ERROR(CheckDim(c));
  const int64_t dim = c.attr<int64_t>("dim"), extent = c.shape(0)[dim];
  if (extent % size != 0) {
    return c.Error("C3") << "dimension " << dim << " of " << c.operand(0) << " does not divide among " << size << " ranks";
  }
  return c.SetResult(c.dtype(0), c.shape(0).WithDim(dim, extent / size));
}

// --- Reference meaning --------------------------------------------------------------------------------------------------

template <typename Context>
ReduceKind KindOf(const Context& c) {
  return *ReduceKindFromName(c.template attr<std::string>("kind"));  // inference has checked it
}

// The type in which ranks' elements are combined.
template <typename T>
using RankAccumulator = std::conditional_t<std::is_same_v<T, Float16> || std::is_same_v<T, BFloat16>, float, T>;

// One element over all ranks, in rank order: get(rank) is the rank's element.
template <typename T, typename A, typename F>
T ReduceElement(ReduceKind kind, size_t ranks, F get) {
  A sum = static_cast<A>(get(0));
  for (size_t rank = 1; rank < ranks; ++rank) sum = ops::Combine(kind, sum, static_cast<A>(get(rank)));
  if (kind == ReduceKind::kMean) sum = static_cast<A>(sum / static_cast<A>(ranks));
  return ConvertElement<T>(sum);
}

// Operand i reduced over all ranks.
Tensor ReduceRanks(const RanksEvalContext& c, size_t i) {
  const ReduceKind kind = KindOf(c);
  Tensor reduced(c.operand(0, i).type());
  DispatchDType(reduced.dtype(), [&](auto tag) {
    using T = typename decltype(tag)::type;
    // The mean of integers is the truncated quotient of a sum that does not overflow.
    const bool wide = std::is_integral_v<T> && kind == ReduceKind::kMean;
    const auto out = reduced.mutable_data<T>();
    for (size_t at = 0; at < out.size(); ++at) {
      const auto get = [&](size_t rank) { return c.operand(rank, i).data<T>()[at]; };
      out[at] = wide ? ReduceElement<T, Accumulator<T>>(kind, c.num_ranks(), get)
                     : ReduceElement<T, RankAccumulator<T>>(kind, c.num_ranks(), get);
    }
  });
  return reduced;
}

// Copies `slice`, the `rank`-th slice of dimension `dim` of `whole`, into it or out of it.
struct SliceCopy {
  size_t outer, slice_bytes, whole_bytes;  // runs, and their lengths

  SliceCopy(const Tensor& slice, const Tensor& whole, int64_t dim) : outer(1) {
    for (int64_t i = 0; i < dim; ++i) outer *= static_cast<size_t>(whole.shape()[i]);
    slice_bytes = outer == 0 ? 0 : slice.num_bytes() / outer;
    whole_bytes = outer == 0 ? 0 : whole.num_bytes() / outer;
  }
  void Into(const Tensor& slice, Tensor& whole, size_t rank) const {
    std::byte* to = whole.mutable_bytes();
    for (size_t i = 0; i < outer; ++i) std::memcpy(to + i * whole_bytes + rank * slice_bytes, slice.bytes() + i * slice_bytes, slice_bytes);
  }
  void OutOf(const Tensor& whole, Tensor& slice, size_t rank) const {
    std::byte* to = slice.mutable_bytes();
    for (size_t i = 0; i < outer; ++i) std::memcpy(to + i * slice_bytes, whole.bytes() + i * whole_bytes + rank * slice_bytes, slice_bytes);
  }
};

absl::Status EvalAllReduce(RanksEvalContext& c) {
  for (size_t i = 0; i < c.num_operands(); ++i) {
    const Tensor reduced = ReduceRanks(c, i);
    for (size_t rank = 0; rank < c.num_ranks(); ++rank) c.result(rank, i) = reduced;
  }
  return absl::OkStatus();
}

absl::Status EvalCollectiveBroadcast(RanksEvalContext& c) {
  const Tensor& root = c.operand(static_cast<size_t>(c.attr<int64_t>("root")), 0);
  for (size_t rank = 0; rank < c.num_ranks(); ++rank) c.result(rank) = root;
  return absl::OkStatus();
}

absl::Status EvalAllGather(RanksEvalContext& c) {
  Tensor whole(c.result(0).type());
  const SliceCopy copy(c.operand(0, 0), whole, c.attr<int64_t>("dim"));
  for (size_t rank = 0; rank < c.num_ranks(); ++rank) copy.Into(c.operand(rank, 0), whole, rank);
  for (size_t rank = 0; rank < c.num_ranks(); ++rank) c.result(rank) = whole;
  return absl::OkStatus();
}

absl::Status EvalReduceScatter(RanksEvalContext& c) {
  const Tensor reduced = ReduceRanks(c, 0);
  const SliceCopy copy(c.result(0), reduced, c.attr<int64_t>("dim"));
  for (size_t rank = 0; rank < c.num_ranks(); ++rank) copy.OutOf(reduced, c.result(rank), rank);
  return absl::OkStatus();
}

absl::Status EvalShard(RanksEvalContext& c) {
  const SliceCopy copy(c.result(0), c.operand(0, 0), c.attr<int64_t>("dim"));
  for (size_t rank = 0; rank < c.num_ranks(); ++rank) copy.OutOf(c.operand(rank, 0), c.result(rank), rank);
  return absl::OkStatus();
}

absl::Status EvalAxisIndex(RanksEvalContext& c) {
  for (size_t rank = 0; rank < c.num_ranks(); ++rank) c.result(rank) = Tensor::Scalar(DType::kI64, static_cast<double>(rank));
  return absl::OkStatus();
}

// --- Gradients ----------------------------------------------------------------------------------------------------------

// The gradient of y = all_reduce(x) of the kinds that are not linear; g is already summed over the ranks.
Value NonlinearAllReduceGradient(Builder& b, std::string_view axis, ReduceKind kind, Value x, Value y, Value g) {
  const Value one = b.SplatLike(1.0, x), zero = b.SplatLike(0.0, x);
  if (kind != ReduceKind::kProd) {
    // To the ranks that hold the extremum, in equal shares.
    const Value mask = b.Convert(b.Compare(x, y, "eq"), x.dtype());
    return b.Div(b.Mul(mask, g), b.AllReduce(mask, axis, ReduceKind::kSum));
  }
  // The product of the other ranks' factors: see the gradient of reduce_prod.
  const Value is_zero = b.Compare(x, zero, "eq");
  const Value nonzero = b.Select(is_zero, one, x);
  const Value zeros = b.AllReduce(b.Convert(is_zero, x.dtype()), axis, ReduceKind::kSum);
  const Value if_only_zero = b.Select(b.Compare(zeros, one, "eq"), b.AllReduce(nonzero, axis, ReduceKind::kProd), zero);
  return b.Mul(g, b.Select(is_zero, if_only_zero, b.Div(y, nonzero)));
}

void AllReduceVjp(VjpContext& c) {
  Builder& b = c.b();
  const std::string& axis = c.attr<std::string>("axis");
  const ReduceKind kind = KindOf(c);
  for (size_t i = 0; i < c.num_operands(); ++i) {
    if (!c.grad(i)) continue;
    const Value g = b.AllReduce(c.grad(i), axis, kind == ReduceKind::kMean ? kind : ReduceKind::kSum);
    const bool linear = kind == ReduceKind::kSum || kind == ReduceKind::kMean;
    c.Contribute(i, linear ? g : NonlinearAllReduceGradient(b, axis, kind, c.operand(i), c.result(i), g));
  }
}

void CollectiveBroadcastVjp(VjpContext& c) {
  Builder& b = c.b();
  const std::string& axis = c.attr<std::string>("axis");
  const Value g = b.AllReduce(c.grad(), axis, ReduceKind::kSum);
  const Value rank = b.Op("axis_index", {}, {{"axis", axis}});
  const Value is_root = b.Compare(rank, b.SplatLike(static_cast<double>(c.attr<int64_t>("root")), rank), "eq");
  if (!g || !is_root) return;
  c.Contribute(0, b.Select(b.Broadcast(is_root, g.shape(), {}), g, b.SplatLike(0.0, g)));
}

void ReduceScatterVjp(VjpContext& c) {
  Builder& b = c.b();
  const ReduceKind kind = KindOf(c);
  if (kind != ReduceKind::kSum && kind != ReduceKind::kMean) {
    return c.Fail("kind " + c.attr<std::string>("kind") + " is not linear; use all_reduce and shard");
  }
  const Value whole = b.AllGather(c.grad(), c.attr<std::string>("axis"), c.attr<int64_t>("dim"));
  if (!whole) return;
  const double ranks = static_cast<double>(whole.shape()[c.attr<int64_t>("dim")]) / static_cast<double>(c.grad().shape()[c.attr<int64_t>("dim")]);
  c.Contribute(0, kind == ReduceKind::kMean ? b.Scale(whole, 1.0 / ranks) : whole);
}

// A rank's loss depends on its own slice alone: the gradient is g in that place, and zero elsewhere. As the place depends on the rank,
// g is repeated for all ranks and kept where the repetition is the rank's own.
void ShardVjp(VjpContext& c) {
  Builder& b = c.b();
  const int64_t dim = c.attr<int64_t>("dim");
  const Shape& whole = c.operand(0).shape();
  Ints repeated = c.grad().shape().dims(), dims;
  const int64_t ranks = b.graph().mesh().axis_size(c.attr<std::string>("axis")).value();
  repeated.insert(repeated.begin() + dim, ranks);
  for (int64_t i = 0; i < static_cast<int64_t>(repeated.size()); ++i) {
    if (i != dim) dims.push_back(i);
  }
  const Value copies = b.Broadcast(c.grad(), Shape(repeated), dims);
  const Value rank = b.Op("axis_index", {}, {{"axis", c.attr<std::string>("axis")}});
  const Value is_mine = b.Compare(b.Iota({DType::kI64, Shape(repeated)}, dim), b.Broadcast(rank, Shape(repeated), {}), "eq");
  c.Contribute(0, b.Reshape(b.Select(is_mine, copies, b.SplatLike(0.0, copies)), whole));
}

// --- Placement ----------------------------------------------------------------------------------------------------------

bool IsOwnAxis(const PlacementContext& c) { return c.attr<std::string>("axis") == c.mesh_axis(); }

bool IsLinear(ReduceKind kind) { return kind == ReduceKind::kSum || kind == ReduceKind::kMean; }

// Along its own axis a reduction of operand i gives `result`. Shares of one reduction may only be reduced by it.
void PlaceReductionOverRanks(PlacementContext& c, size_t i, Placement result) {
  const Placement& x = c.operand(i);
  if (x.is_partial() && x.reduce() != KindOf(c)) {
    c.Fail("operand " + std::to_string(i) + " is " + x.ToString() + ", which kind=" + c.attr<std::string>("kind") + " does not make whole");
  }
  c.Result(i, result);
}

// Along another axis it is elementwise: shares of one reduction may pass another that it commutes with.
void PlaceReductionAlongOtherAxis(PlacementContext& c, size_t i) {
  const Placement& x = c.operand(i);
  const bool passes = !x.is_partial() || x.reduce() == KindOf(c) || (IsLinear(x.reduce()) && IsLinear(KindOf(c)));
  if (!passes) c.Require(i, Placement::Replicated());
  c.Result(i, passes ? x : Placement::Replicated());
}

// Along another axis, an op that moves data in dimension `dim`: all placements pass but a split of that dimension, whose
// slices would no longer be the global ones.
void PlaceMovementAlongOtherAxis(PlacementContext& c) {
  const Placement& x = c.operand(0);
  const bool passes = !x.is_split(c.attr<int64_t>("dim"));
  if (!passes) c.Require(0, Placement::Replicated());
  c.Result(passes ? x : Placement::Replicated());
}

void PlaceAllReduce(PlacementContext& c) {
  for (size_t i = 0; i < c.num_operands(); ++i) {
    if (IsOwnAxis(c)) PlaceReductionOverRanks(c, i, Placement::Replicated());
    else PlaceReductionAlongOtherAxis(c, i);
  }
}

void PlaceReduceScatter(PlacementContext& c) {
  const int64_t dim = c.attr<int64_t>("dim");
  if (IsOwnAxis(c)) return PlaceReductionOverRanks(c, 0, Placement::Split(dim));
  if (c.operand(0).is_split(dim)) PlaceMovementAlongOtherAxis(c);
  else PlaceReductionAlongOtherAxis(c, 0);
}

// All ranks hold the same afterwards; of shares nothing whole would come.
void PlaceCopyToAll(PlacementContext& c) {
  if (c.operand(0).is_partial()) c.Require(0, Placement::Replicated());
  c.Result(Placement::Replicated());
}

void PlaceAllGather(PlacementContext& c) {
  if (IsOwnAxis(c)) PlaceCopyToAll(c);
  else PlaceMovementAlongOtherAxis(c);
}

void PlaceCollectiveBroadcast(PlacementContext& c) {
  if (IsOwnAxis(c)) PlaceCopyToAll(c);
  else c.Result(c.operand(0));
}

void PlaceShard(PlacementContext& c) {
  if (!IsOwnAxis(c)) return PlaceMovementAlongOtherAxis(c);
  if (c.operand(0).is_local()) return c.Result(Placement::Local());
  c.Require(0, Placement::Replicated());
  c.Result(Placement::Split(c.attr<int64_t>("dim")));
}

}  // namespace

//===-- all_reduce ---------------------------------------------------------------------------------------------------------===//
const OpDef& AllReduceOp() {
  static const OpDef def = OpDef("all_reduce")
                               .Doc("Each operand reduced over the ranks of a mesh axis, elementwise and in rank order; one result for each operand.")
                               .Variadic("xs")
                               .Attr<std::string>("axis", "of the mesh")
                               .Attr<std::string>("kind", "sum, min, max, prod or mean")
                               .OptionalAttr<int64_t>("bucket", -1, "the bucket in which the operands lie side by side; -1: not yet decided")
                               .Trait(kCollective)
                               .Constraint("C1", kAxisConstraint)
                               .Constraint("C2", "kind is one of sum, min, max, prod, mean")
                               .Constraint("C3", "the kind of bool operands is min or max")
                               .Infer(InferAllReduce)
                               .EvalAcrossRanks(EvalAllReduce)
                               .Vjp(AllReduceVjp)
                               .Place(PlaceAllReduce);
  return def;
}

//===-- collective_broadcast -----------------------------------------------------------------------------------------------===//
const OpDef& CollectiveBroadcastOp() {
  static const OpDef def = OpDef("collective_broadcast")
                               .Doc("The x of the rank whose coordinate along a mesh axis is root, on all ranks.")
                               .Operand("x")
                               .Attr<std::string>("axis", "of the mesh")
                               .Attr<int64_t>("root", "a coordinate along axis")
                               .Trait(kCollective)
                               .Constraint("C1", kAxisConstraint)
                               .Constraint("C2", "root is at least 0 and below the size of axis")
                               .Infer([](InferContext& c) -> absl::Status {
                                 ASSIGN_OR_RETURN(const int64_t size, AxisSize(c));
                                 const int64_t root = c.attr<int64_t>("root");
                                 if (root < 0 || root >= size) return c.Error("C2") << "root " << root << " of " << size << " ranks";
                                 return c.SetResult(c.operand(0));
                               })
                               .EvalAcrossRanks(EvalCollectiveBroadcast)
                               .Vjp(CollectiveBroadcastVjp)
                               .Place(PlaceCollectiveBroadcast);
  return def;
}

//===-- all_gather ---------------------------------------------------------------------------------------------------------===//
const OpDef& AllGatherOp() {
  static const OpDef def =
      OpDef("all_gather")
          .Doc("x of all ranks of a mesh axis, one after the other along dim, in rank order.")
          .Operand("x")
          .Attr<std::string>("axis", "of the mesh")
          .Attr<int64_t>("dim", "along which to concatenate")
          .Trait(kCollective)
          .Constraint("C1", kAxisConstraint)
          .Constraint("C2", "dim is a dimension of x")
          .Constraint("C3", "the result is not too large")
          .Infer([](InferContext& c) -> absl::Status {
            ASSIGN_OR_RETURN(const int64_t size, AxisSize(c));
            RETURN_IF_ERROR(CheckDim(c));
            Ints extents = c.shape(0).dims();
            int64_t& extent = extents[static_cast<size_t>(c.attr<int64_t>("dim"))];
            if (__builtin_mul_overflow(extent, size, &extent)) return c.Error("C3") << size << " times " << c.operand(0);
            RETURN_IF_ERROR(ops::CheckExtents(c, "C3", extents));
            return c.SetResult(c.dtype(0), Shape(extents));
          })
          .EvalAcrossRanks(EvalAllGather)
          .Vjp([](VjpContext& c) {
            c.Contribute(0, c.b().ReduceScatter(c.grad(), c.attr<std::string>("axis"), c.attr<int64_t>("dim"), ReduceKind::kSum));
          })
          .Place(PlaceAllGather);
  return def;
}

//===-- reduce_scatter -----------------------------------------------------------------------------------------------------===//
const OpDef& ReduceScatterOp() {
  static const OpDef def = OpDef("reduce_scatter")
                               .Doc("x reduced over the ranks of a mesh axis, elementwise and in rank order; each rank keeps its slice along dim.")
                               .Operand("x")
                               .Attr<std::string>("axis", "of the mesh")
                               .Attr<int64_t>("dim", "along which the ranks share the result")
                               .Attr<std::string>("kind", "sum, min, max, prod or mean")
                               .Trait(kCollective)
                               .Constraint("C1", kAxisConstraint)
                               .Constraint("C2", "dim is a dimension of x")
                               .Constraint("C3", "the extent of dim is divisible by the size of axis")
                               .Constraint("C4", "kind is one of sum, min, max, prod, mean")
                               .Constraint("C5", "the kind of a bool operand is min or max")
                               .Infer([](InferContext& c) -> absl::Status {
                                 RETURN_IF_ERROR(InferSlice(c));
                                 return CheckKind(c, "C4", "C5");
                               })
                               .EvalAcrossRanks(EvalReduceScatter)
                               .Vjp(ReduceScatterVjp)
                               .Place(PlaceReduceScatter);
  return def;
}

//===-- shard --------------------------------------------------------------------------------------------------------------===//
const OpDef& ShardOp() {
  static const OpDef def = OpDef("shard")
                               .Doc("This rank's slice of x along dim: of n equal slices the one at the rank's coordinate along a mesh axis. "
                                    "No communication. Its gradient on a rank is zero outside of that slice.")
                               .Operand("x")
                               .Attr<std::string>("axis", "of the mesh")
                               .Attr<int64_t>("dim", "along which to slice")
                               .Constraint("C1", kAxisConstraint)
                               .Constraint("C2", "dim is a dimension of x")
                               .Constraint("C3", "the extent of dim is divisible by the size of axis")
                               .Infer(InferSlice)
                               .EvalAcrossRanks(EvalShard)
                               .Vjp(ShardVjp)
                               .Place(PlaceShard);
  return def;
}

//===-- axis_index ---------------------------------------------------------------------------------------------------------===//
const OpDef& AxisIndexOp() {
  static const OpDef def = OpDef("axis_index")
                               .Doc("This rank's coordinate along a mesh axis: i64[].")
                               .Attr<std::string>("axis", "of the mesh")
                               .Constraint("C1", kAxisConstraint)
                               .Infer([](InferContext& c) -> absl::Status {
                                 RETURN_IF_ERROR(AxisSize(c).status());
                                 return c.SetResult(DType::kI64, Shape());
                               })
                               .EvalAcrossRanks(EvalAxisIndex)
                               .NoGradient("it has no operands")
                               .Place([](PlacementContext& c) { c.Result(IsOwnAxis(c) ? Placement::Local() : Placement::Replicated()); });
  return def;
}

}  // namespace lockstep
