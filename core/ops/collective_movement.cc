// Collectives that move data, and ops whose results depend on the rank. See collective.cc for the meaning of gradients.

#include <algorithm>

#include "core/builder.h"
#include "core/ops/collective_rules.h"
#include "core/ops/op_list.h"
#include "core/ops/rules.h"

namespace lockstep {
namespace {

using Ints = std::vector<int64_t>;

// --- Inference -------------------------------------------------------------------------------------------------------

// There is a part for each rank of the axis; in a local graph, and without a mesh, one.
absl::Status InferParts(InferContext& c) {
  const Ints& shape = c.attr<Ints>("shape");
  if (shape.empty() || Shape(Ints(shape.begin() + 1, shape.end())) != c.shape(0))
    return c.Error("C2") << "shape " << ListToString(shape) << " of the parts of " << c.operand(0);
  int64_t ranks = 1;
  if (!c.mesh().empty()) {
    ASSIGN_OR_RETURN(const int64_t size, ops::CheckAxis(c));
    if (!c.is_local()) ranks = size;
  }
  if (shape[0] != ranks) return c.Error("C3") << shape[0] << " parts, expected " << ranks;
  const std::string& kind = c.attr<std::string>("kind");
  if (!ReduceKindFromName(kind)) return c.Error("C4") << "kind '" << kind << "', expected sum, min, max, prod or mean";
  RETURN_IF_ERROR(ops::CheckExtents(c, "C2", shape));
  return c.SetResult(c.dtype(0), Shape(shape));
}

absl::Status InferOwnPart(InferContext& c) {
  if (c.shape(0).rank() == 0) return c.Error("C2") << "x is " << c.operand(0) << ", which has no dimensions";
  int64_t ranks = 1;
  if (!c.mesh().empty()) {
    ASSIGN_OR_RETURN(const int64_t size, ops::CheckAxis(c));
    if (!c.is_local()) ranks = size;
  }
  const Ints& dims = c.shape(0).dims();
  if (dims[0] != ranks) return c.Error("C2") << dims[0] << " parts, expected " << ranks;
  return c.SetResult(c.dtype(0), Shape(Ints(dims.begin() + 1, dims.end())));
}

// --- Reference meaning -----------------------------------------------------------------------------------------------

absl::Status EvalCollectiveBroadcast(RanksEvalContext& c) {
  // In the one-rank program the one rank stands for all.
  const size_t ranks = c.num_ranks(), root_rank = ranks == 1 ? 0 : static_cast<size_t>(c.attr<int64_t>("root"));
  const Tensor& root = c.operand(root_rank, 0);
  for (size_t rank = 0; rank < c.num_ranks(); ++rank) c.result(rank) = root;
  return absl::OkStatus();
}

absl::Status EvalAllGather(RanksEvalContext& c) {
  for (size_t i = 0; i < c.num_operands(); ++i) {
    Tensor whole(c.result(0, i).type());
    const ops::SliceCopy copy(c.operand(0, i), whole, c.attr<int64_t>("dim"));
    for (size_t rank = 0; rank < c.num_ranks(); ++rank) copy.Into(c.operand(rank, i), whole, rank);
    for (size_t rank = 0; rank < c.num_ranks(); ++rank) c.result(rank, i) = whole;
  }
  return absl::OkStatus();
}

// In the one-rank program the first part is the whole value. The others are neutral: 0 in a sum, 1 in a product, and
// the value itself in a mean, a minimum and a maximum.
absl::Status EvalParts(EvalContext& c) {
  const ReduceKind kind = *ReduceKindFromName(c.attr<std::string>("kind"));
  const bool repeats = kind != ReduceKind::kSum && kind != ReduceKind::kProd;
  DispatchDType(c.operand(0).dtype(), [&](auto tag) {
    using T = typename decltype(tag)::type;
    const auto x = c.operand(0).data<T>();
    const auto parts = c.result().mutable_data<T>();
    const T neutral = ConvertElement<T>(kind == ReduceKind::kProd ? 1.0 : 0.0);
    for (size_t i = 0; i < parts.size(); ++i) parts[i] = i < x.size() || repeats ? x[i % x.size()] : neutral;
  });
  return absl::OkStatus();
}

// As one rank sees a placed program, it is the first: what `parts` makes of its x has x there.
absl::Status EvalOwnPart(EvalContext& c) {
  std::copy_n(c.operand(0).bytes(), c.result().num_bytes(), c.result().mutable_bytes());
  return absl::OkStatus();
}

absl::Status EvalShard(RanksEvalContext& c) {
  const ops::SliceCopy copy(c.result(0), c.operand(0, 0), c.attr<int64_t>("dim"));
  for (size_t rank = 0; rank < c.num_ranks(); ++rank) copy.OutOf(c.operand(rank, 0), c.result(rank), rank);
  return absl::OkStatus();
}

absl::Status EvalAxisIndex(RanksEvalContext& c) {
  for (size_t rank = 0; rank < c.num_ranks(); ++rank)
    c.result(rank) = Tensor::Scalar(DType::kI64, static_cast<double>(rank));
  return absl::OkStatus();
}

// --- Gradients -------------------------------------------------------------------------------------------------------

void CollectiveBroadcastVjp(VjpContext& c) {
  Builder& b = c.b();
  const std::string& axis = c.attr<std::string>("axis");
  const Value g = b.AllReduce(c.grad(), axis, ReduceKind::kSum);
  const Value rank = b.Op("axis_index", {}, {{"axis", axis}});
  const Value is_root = b.Compare(rank, b.SplatLike(static_cast<double>(c.attr<int64_t>("root")), rank), "eq");
  if (!g || !is_root) return;
  c.Contribute(0, b.Select(b.Broadcast(is_root, g.shape(), {}), g, b.SplatLike(0.0, g)));
}

// A rank's loss depends on its own slice only: the gradient is g in that slice and zero elsewhere. The position of the
// slice depends on the rank, so g is repeated for all ranks, and only the copy of this rank is kept.
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
  const Value is_mine =
      b.Compare(b.Iota({DType::kI64, Shape(repeated)}, dim), b.Broadcast(rank, Shape(repeated), {}), "eq");
  c.Contribute(0, b.Reshape(b.Select(is_mine, copies, b.SplatLike(0.0, copies)), whole));
}

void AllGatherVjp(VjpContext& c) {
  for (size_t i = 0; i < c.num_operands(); ++i) {
    if (!c.grad(i)) continue;
    c.Contribute(i,
                 c.b().ReduceScatter(c.grad(i), c.attr<std::string>("axis"), c.attr<int64_t>("dim"), ReduceKind::kSum));
  }
}

// --- Placement -------------------------------------------------------------------------------------------------------

void PlaceAllGather(PlacementContext& c) {
  const int64_t dim = c.attr<int64_t>("dim");
  for (size_t i = 0; i < c.num_operands(); ++i) {
    if (!ops::IsOwnAxis(c)) {
      ops::PlaceMovementAlongOtherAxis(c, i, dim);
      continue;
    }
    c.Require(i, Placement::Split(dim));
    c.Result(i, Placement::Replicated());
  }
}

// The result is replicated, also if the operand is local. Partial and split operands must be replicated first.
void PlaceCollectiveBroadcast(PlacementContext& c) {
  if (!ops::IsOwnAxis(c)) return c.Result(c.operand(0));
  if (c.operand(0).is_at()) c.Require(0, Placement::At(c.attr<int64_t>("root")));
  else if (!c.operand(0).is_local()) c.Require(0, Placement::Replicated());
  c.Result(Placement::Replicated());
}

void PlaceShard(PlacementContext& c) {
  const int64_t dim = c.attr<int64_t>("dim");
  if (!ops::IsOwnAxis(c)) return ops::PlaceMovementAlongOtherAxis(c, 0, dim);
  c.Require(0, Placement::Replicated());
  c.Result(Placement::Split(dim));
}

void PlaceParts(PlacementContext& c) {
  const std::string& kind = c.attr<std::string>("kind");
  if (!ops::IsOwnAxis(c) && kind == "prod" && c.operand(0).is_partial()) {
    c.Require(0, Placement::Replicated());  // the neutral parts are 1 on each rank, which is no term of 1
    c.Result(Placement::Replicated());
    return;
  }
  if (!ops::IsOwnAxis(c)) {
    return ops::PlaceDataMovement(c, [](int64_t dim) { return dim + 1; }, [](int64_t dim) { return dim - 1; });
  }
  const Placement& x = c.operand(0);
  if (!x.is_partial(*ReduceKindFromName(kind)) && !x.is_local())
    c.Fail("the operand is " + x.ToString() + ": its parts are not terms of a " + kind);
  c.Result(Placement::Split(0));
}

void PlaceOwnPart(PlacementContext& c) {
  if (!ops::IsOwnAxis(c)) {
    return ops::PlaceDataMovement(c, [](int64_t dim) { return dim - 1; }, [](int64_t dim) { return dim + 1; });
  }
  c.Require(0, Placement::Split(0));
  c.Result(Placement::Local());
}

}  // namespace

//===-- collective_broadcast --------------------------------------------------------------------------------------===//
const OpDef& CollectiveBroadcastOp() {
  static const OpDef def = OpDef("collective_broadcast")
                               .Doc("The x of the rank whose coordinate along a mesh axis is root, on all ranks.")
                               .Operand("x")
                               .Attr<std::string>("axis", "of the mesh")
                               .Attr<int64_t>("root", "a coordinate along axis")
                               .Communicates(CollectiveOp::kBroadcast)
                               .Trait(kMovement)
                               .Constraint("C1", ops::kAxisConstraint)
                               .Constraint("C2", ops::kRootConstraint)
                               .Infer([](InferContext& c) -> absl::Status {
                                 ASSIGN_OR_RETURN(const int64_t size, ops::CheckAxis(c));
                                 RETURN_IF_ERROR(ops::CheckRoot(c, size, "C2"));
                                 return c.SetResult(c.operand(0));
                               })
                               .EvalAcrossRanks(EvalCollectiveBroadcast)
                               .Precision(PrecisionRule::kFollows)
                               .Vjp(CollectiveBroadcastVjp)
                               .Place(PlaceCollectiveBroadcast);
  return def;
}

//===-- all_gather ------------------------------------------------------------------------------------------------===//
const OpDef& AllGatherOp() {
  static const OpDef def =
      OpDef("all_gather")
          .Doc(
              "Each operand of all ranks of a mesh axis, concatenated along dim in rank order; one result for each "
              "operand.")
          .Variadic("xs")
          .Attr<std::string>("axis", "of the mesh")
          .Attr<int64_t>("dim", "the dimension along which to concatenate")
          .OptionalAttr<int64_t>("bucket", -1, ops::kBucketDoc)
          .Communicates(CollectiveOp::kAllGather)
          .Trait(kMovement)
          .Constraint("C1", ops::kAxisConstraint)
          .Constraint("C2", "dim is a dimension of each operand")
          .Constraint("C3", "no result is too large")
          .Infer([](InferContext& c) -> absl::Status {
            ASSIGN_OR_RETURN(const int64_t size, ops::CheckAxis(c));
            const int64_t dim = c.attr<int64_t>("dim");
            std::vector<TensorType> wholes;
            for (size_t i = 0; i < c.num_operands(); ++i) {
              RETURN_IF_ERROR(ops::CheckDim(c, i));
              ASSIGN_OR_RETURN(wholes.emplace_back(), ops::WholeType(c, c.operand(i), dim, size, "C3"));
            }
            return c.SetResults(std::move(wholes));
          })
          .EvalAcrossRanks(EvalAllGather)
          .Precision(PrecisionRule::kFollows)
          .Vjp(AllGatherVjp)
          .Place(PlaceAllGather);
  return def;
}

//===-- shard -----------------------------------------------------------------------------------------------------===//
const OpDef& ShardOp() {
  static const OpDef def =
      OpDef("shard")
          .Doc(
              "This rank's slice of x: the one at the rank's coordinate along a mesh axis, of equal slices along dim. "
              "No communication. Its gradient on a rank is zero outside of that slice.")
          .Operand("x")
          .Attr<std::string>("axis", "of the mesh")
          .Attr<int64_t>("dim", "the dimension of the slices")
          .Trait(kMovement)
          .Trait(kOneRankIdentity)
          .Constraint("C1", ops::kAxisConstraint)
          .Constraint("C2", "dim is a dimension of x")
          .Constraint("C3", "the extent of dim is divisible by the size of axis")
          .Infer([](InferContext& c) -> absl::Status {
            ASSIGN_OR_RETURN(TensorType slice, ops::InferSlice(c));
            return c.SetResult(std::move(slice));
          })
          .EvalAcrossRanks(EvalShard)
          .Precision(PrecisionRule::kFollows)
          .Vjp(ShardVjp)
          .Place(PlaceShard);
  return def;
}

//===-- parts -----------------------------------------------------------------------------------------------------===//
const OpDef& PartsOp() {
  static const OpDef def =
      OpDef("parts")
          .Doc(
              "The terms of a sum, of which each rank of a mesh axis has one, x, stacked along a new first dimension. "
              "Their sum along it is the whole value. A rank's slice of the result is its x. No communication. The "
              "same "
              "for other kinds of reductions.")
          .Operand("x")
          .Attr<std::string>("axis", "of the mesh")
          .Attr<Ints>("shape", "of the result")
          .OptionalAttr<std::string>("kind", "sum", "sum, min, max, prod or mean")
          .PerDim("shape")
          .Trait(kMovement)
          .Trait(kKeepsOrder)
          .Constraint("C1", ops::kAxisConstraint)
          .Constraint("C2", "shape is one extent followed by the shape of x")
          .Constraint("C3", "that extent is the size of axis; in a local graph it is 1")
          .Constraint("C4", "kind is one of sum, min, max, prod, mean")
          .Infer(InferParts)
          .Eval(EvalParts)
          .Precision(PrecisionRule::kFollows)
          .NoGradient("it is used only after differentiation")
          .Place(PlaceParts);
  return def;
}

//===-- own_part --------------------------------------------------------------------------------------------------===//
const OpDef& OwnPartOp() {
  static const OpDef def =
      OpDef("own_part")
          .Doc(
              "This rank's part of x, which has one for each rank of a mesh axis along its first dimension, without "
              "that dimension. The inverse of parts: the result differs between ranks. No communication.")
          .Operand("x")
          .Attr<std::string>("axis", "of the mesh")
          .Trait(kMovement)
          .Trait(kKeepsOrder)
          .Constraint("C1", ops::kAxisConstraint)
          .Constraint("C2", "the first extent of x is the size of axis; in a local graph it is 1")
          .Infer(InferOwnPart)
          .Eval(EvalOwnPart)
          .Precision(PrecisionRule::kFollows)
          .NoGradient("it is used only after differentiation")
          .Place(PlaceOwnPart);
  return def;
}

//===-- axis_index ------------------------------------------------------------------------------------------------===//
const OpDef& AxisIndexOp() {
  static const OpDef def = OpDef("axis_index")
                               .Doc("This rank's coordinate along a mesh axis: i64[].")
                               .Attr<std::string>("axis", "of the mesh")
                               .Trait(kGenerator)
                               .Constraint("C1", ops::kAxisConstraint)
                               .Infer([](InferContext& c) -> absl::Status {
                                 RETURN_IF_ERROR(ops::CheckAxis(c).status());
                                 return c.SetResult(DType::kI64, Shape());
                               })
                               .EvalAcrossRanks(EvalAxisIndex)
                               .Precision(PrecisionRule::kAsDeclared)
                               .NoGradient("it has no operands")
                               .Place([](PlacementContext& c) {
                                 c.Result(ops::IsOwnAxis(c) ? Placement::Local() : Placement::Replicated());
                               });
  return def;
}

}  // namespace lockstep
