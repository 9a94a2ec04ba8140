// Collectives in which each rank sends different data to different ranks. See collective.cc for the meaning of
// gradients.
//
// Every rank has a result of the same type: a rank that receives nothing has zeros. A result that differs between ranks
// without a global meaning is placed `local`. all_to_all between two dimensions and collective_scatter have a global
// meaning.

#include <algorithm>
#include <string>
#include <unordered_set>
#include <vector>

#include "core/builder.h"
#include "core/ops/collective_rules.h"
#include "core/ops/op_list.h"
#include "core/ops/rules.h"

namespace lockstep {
namespace {

using Ints = std::vector<int64_t>;

// --- Inference -------------------------------------------------------------------------------------------------------

absl::Status InferAllToAll(InferContext& c) {
  ASSIGN_OR_RETURN(const int64_t size, ops::CheckAxis(c));
  RETURN_IF_ERROR(ops::CheckDim(c, 0, "split_dim"));
  RETURN_IF_ERROR(ops::CheckDim(c, 0, "concat_dim"));
  ASSIGN_OR_RETURN(const TensorType slice, ops::SliceType(c, c.operand(0), c.attr<int64_t>("split_dim"), size));
  ASSIGN_OR_RETURN(TensorType result, ops::WholeType(c, slice, c.attr<int64_t>("concat_dim"), size, "C4"));
  return c.SetResult(std::move(result));
}

// Checks that each rank in the attribute `name` is a coordinate along the axis and occurs once. Time and memory depend
// on the length of the list, not on the size of the axis, which may be any number in a text.
absl::Status CheckRanks(const InferContext& c, std::string_view name, int64_t size) {
  std::unordered_set<int64_t> seen;
  for (const int64_t rank : c.attr<Ints>(name)) {
    if (rank < 0 || rank >= size) return c.Error("C3") << rank << " among the " << name << ", of " << size << " ranks";
    if (!seen.insert(rank).second) return c.Error("C4") << rank << " is twice among the " << name;
  }
  return absl::OkStatus();
}

absl::Status InferPermute(InferContext& c) {
  ASSIGN_OR_RETURN(const int64_t size, ops::CheckAxis(c));
  const size_t sources = c.attr<Ints>("sources").size(), targets = c.attr<Ints>("targets").size();
  if (sources != targets || sources == 0) return c.Error("C2") << sources << " sources and " << targets << " targets";
  RETURN_IF_ERROR(CheckRanks(c, "sources", size));
  RETURN_IF_ERROR(CheckRanks(c, "targets", size));
  return c.SetResult(c.operand(0));
}

// --- Reference meaning -----------------------------------------------------------------------------------------------

absl::Status EvalAllToAll(RanksEvalContext& c) {
  const int64_t split_dim = c.attr<int64_t>("split_dim"), ranks = static_cast<int64_t>(c.num_ranks());
  const TensorType& type = c.operand(0, 0).type();
  Tensor slice(TensorType{type.dtype, type.shape.WithDim(split_dim, type.shape[split_dim] / ranks)});
  const ops::SliceCopy split(slice, c.operand(0, 0), split_dim);
  const ops::SliceCopy concat(slice, c.result(0), c.attr<int64_t>("concat_dim"));
  for (size_t source = 0; source < c.num_ranks(); ++source) {
    for (size_t target = 0; target < c.num_ranks(); ++target) {
      split.OutOf(c.operand(source, 0), slice, target);
      concat.Into(slice, c.result(target), source);
    }
  }
  return absl::OkStatus();
}

absl::Status EvalPermute(RanksEvalContext& c) {
  if (c.num_ranks() == 1) {  // in the one-rank program the one rank stands for all
    c.result(0) = c.operand(0, 0);
    return absl::OkStatus();
  }
  const Ints &sources = c.attr<Ints>("sources"), &targets = c.attr<Ints>("targets");
  for (size_t i = 0; i < sources.size(); ++i)
    c.result(static_cast<size_t>(targets[i])) = c.operand(static_cast<size_t>(sources[i]), 0);
  return absl::OkStatus();
}

size_t RootOf(const RanksEvalContext& c) {
  return c.num_ranks() == 1 ? 0 : static_cast<size_t>(c.attr<int64_t>("root"));
}

absl::Status EvalGatherAcrossRanks(RanksEvalContext& c) {
  Tensor& whole = c.result(RootOf(c));
  const ops::SliceCopy copy(c.operand(0, 0), whole, c.attr<int64_t>("dim"));
  for (size_t rank = 0; rank < c.num_ranks(); ++rank) copy.Into(c.operand(rank, 0), whole, rank);
  return absl::OkStatus();
}

absl::Status EvalScatterAcrossRanks(RanksEvalContext& c) {
  const Tensor& whole = c.operand(RootOf(c), 0);
  const ops::SliceCopy copy(c.result(0), whole, c.attr<int64_t>("dim"));
  for (size_t rank = 0; rank < c.num_ranks(); ++rank) copy.OutOf(whole, c.result(rank), rank);
  return absl::OkStatus();
}

// --- Gradients -------------------------------------------------------------------------------------------------------

// The gradient takes the reverse way.
void AllToAllVjp(VjpContext& c) {
  c.Contribute(0, c.b().Op("all_to_all", {c.grad()},
                           {{"axis", c.attr<std::string>("axis")},
                            {"split_dim", c.attr<int64_t>("concat_dim")},
                            {"concat_dim", c.attr<int64_t>("split_dim")}}));
}

void PermuteVjp(VjpContext& c) {
  c.Contribute(0, c.b().Op("collective_permute", {c.grad()},
                           {{"axis", c.attr<std::string>("axis")},
                            {"sources", c.attr<Ints>("targets")},
                            {"targets", c.attr<Ints>("sources")}}));
}

// collective_gather and collective_scatter are each other's gradients.
void TransposeTo(const char* op, VjpContext& c) { c.Contribute(0, c.b().Op(op, {c.grad()}, c.attributes())); }

// --- Placement -------------------------------------------------------------------------------------------------------

// With two different dimensions it moves a split from one to the other. With equal dimensions ranks exchange slices,
// and the result has no global meaning.
void PlaceAllToAll(PlacementContext& c) {
  const int64_t split_dim = c.attr<int64_t>("split_dim"), concat_dim = c.attr<int64_t>("concat_dim");
  if (!ops::IsOwnAxis(c)) {
    return ops::PlaceMovementAlongOtherAxis(c, 0, c.operand(0).is_split(split_dim) ? split_dim : concat_dim);
  }
  if (split_dim == concat_dim) {
    if (!c.operand(0).is_local()) c.Require(0, Placement::Replicated());
    return c.Result(Placement::Local());
  }
  c.Require(0, Placement::Split(concat_dim));
  c.Result(Placement::Split(split_dim));
}

// Moves a value that is at one rank to another rank if there is one pair. Else the operand is local or replicated, and
// the result local.
void PlacePermute(PlacementContext& c) {
  if (!ops::IsOwnAxis(c)) return c.Result(c.operand(0));
  const Ints &sources = c.attr<Ints>("sources"), &targets = c.attr<Ints>("targets");
  if (c.operand(0).is_at() && sources.size() == 1) {
    c.Require(0, Placement::At(sources[0]));
    return c.Result(Placement::At(targets[0]));
  }
  if (!c.operand(0).is_local()) c.Require(0, Placement::Replicated());
  c.Result(Placement::Local());
}

void PlaceGatherAcrossRanks(PlacementContext& c) {
  const int64_t dim = c.attr<int64_t>("dim");
  if (!ops::IsOwnAxis(c)) return ops::PlaceMovementAlongOtherAxis(c, 0, dim);
  c.Require(0, Placement::Split(dim));
  c.Result(Placement::Local());
}

void PlaceScatterAcrossRanks(PlacementContext& c) {
  const int64_t dim = c.attr<int64_t>("dim");
  if (!ops::IsOwnAxis(c)) return ops::PlaceMovementAlongOtherAxis(c, 0, dim);
  if (!c.operand(0).is_local()) c.Require(0, Placement::Replicated());
  c.Result(Placement::Split(dim));
}

}  // namespace

//===-- all_to_all ------------------------------------------------------------------------------------------------===//
const OpDef& AllToAllOp() {
  static const OpDef def =
      OpDef("all_to_all")
          .Doc(
              "x is split along split_dim into a slice for each rank of a mesh axis. A rank's result is its slices "
              "from all ranks, concatenated along concat_dim in rank order.")
          .Operand("x")
          .Attr<std::string>("axis", "of the mesh")
          .Attr<int64_t>("split_dim", "the dimension along which x is split")
          .Attr<int64_t>("concat_dim", "the dimension along which slices are concatenated")
          .Communicates(CollectiveOp::kAllToAll)
          .Trait(kMovement)
          .Constraint("C1", ops::kAxisConstraint)
          .Constraint("C2", "split_dim and concat_dim are dimensions of x")
          .Constraint("C3", "the extent of split_dim is divisible by the size of axis")
          .Constraint("C4", "the result is not too large")
          .Infer(InferAllToAll)
          .EvalAcrossRanks(EvalAllToAll)
          .Precision(PrecisionRule::kFollows)
          .Vjp(AllToAllVjp)
          .Place(PlaceAllToAll);
  return def;
}

//===-- collective_permute ----------------------------------------------------------------------------------------===//
const OpDef& CollectivePermuteOp() {
  static const OpDef def =
      OpDef("collective_permute")
          .Doc("The rank targets[i] of a mesh axis gets the x of rank sources[i]. A rank that is no target gets zeros.")
          .Operand("x")
          .Attr<std::string>("axis", "of the mesh")
          .Attr<Ints>("sources", "coordinates along axis")
          .Attr<Ints>("targets", "coordinates along axis, one for each source")
          .Communicates(CollectiveOp::kPermute)
          .Constraint("C1", ops::kAxisConstraint)
          .Constraint("C2", "there are as many sources as targets, at least one")
          .Constraint("C3", "sources and targets are at least 0 and below the size of axis")
          .Constraint("C4", "no rank is twice a source, or twice a target")
          .Infer(InferPermute)
          .EvalAcrossRanks(EvalPermute)
          .Precision(PrecisionRule::kFollows)
          .Vjp(PermuteVjp)
          .Place(PlacePermute);
  return def;
}

//===-- collective_gather -----------------------------------------------------------------------------------------===//
const OpDef& CollectiveGatherOp() {
  static const OpDef def =
      OpDef("collective_gather")
          .Doc(
              "The x of all ranks, concatenated along dim in rank order, on the rank whose coordinate along a mesh "
              "axis is root; zeros on the others.")
          .Operand("x")
          .Attr<std::string>("axis", "of the mesh")
          .Attr<int64_t>("dim", "the dimension along which to concatenate")
          .Attr<int64_t>("root", "a coordinate along axis")
          .Communicates(CollectiveOp::kGather)
          .Constraint("C1", ops::kAxisConstraint)
          .Constraint("C2", "dim is a dimension of x")
          .Constraint("C3", "the result is not too large")
          .Constraint("C4", ops::kRootConstraint)
          .Infer([](InferContext& c) -> absl::Status {
            ASSIGN_OR_RETURN(const int64_t size, ops::CheckAxis(c));
            RETURN_IF_ERROR(ops::CheckDim(c));
            RETURN_IF_ERROR(ops::CheckRoot(c, size, "C4"));
            ASSIGN_OR_RETURN(TensorType whole, ops::WholeType(c, c.operand(0), c.attr<int64_t>("dim"), size, "C3"));
            return c.SetResult(std::move(whole));
          })
          .EvalAcrossRanks(EvalGatherAcrossRanks)
          .Precision(PrecisionRule::kFollows)
          .Vjp([](VjpContext& c) { TransposeTo("collective_scatter", c); })
          .Place(PlaceGatherAcrossRanks);
  return def;
}

//===-- collective_scatter ----------------------------------------------------------------------------------------===//
const OpDef& CollectiveScatterOp() {
  static const OpDef def =
      OpDef("collective_scatter")
          .Doc(
              "The x of the rank whose coordinate along a mesh axis is root is split along dim into equal slices. Each "
              "rank gets the slice at its own coordinate.")
          .Operand("x")
          .Attr<std::string>("axis", "of the mesh")
          .Attr<int64_t>("dim", "the dimension of the slices")
          .Attr<int64_t>("root", "a coordinate along axis")
          .Communicates(CollectiveOp::kScatter)
          .Trait(kMovement)
          .Constraint("C1", ops::kAxisConstraint)
          .Constraint("C2", "dim is a dimension of x")
          .Constraint("C3", "the extent of dim is divisible by the size of axis")
          .Constraint("C4", ops::kRootConstraint)
          .Infer([](InferContext& c) -> absl::Status {
            ASSIGN_OR_RETURN(TensorType slice, ops::InferSlice(c));
            ASSIGN_OR_RETURN(const int64_t size, ops::CheckAxis(c));
            RETURN_IF_ERROR(ops::CheckRoot(c, size, "C4"));
            return c.SetResult(std::move(slice));
          })
          .EvalAcrossRanks(EvalScatterAcrossRanks)
          .Precision(PrecisionRule::kFollows)
          .Vjp([](VjpContext& c) { TransposeTo("collective_gather", c); })
          .Place(PlaceScatterAcrossRanks);
  return def;
}

}  // namespace lockstep
